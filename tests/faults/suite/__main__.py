"""``python -m tests.faults.suite [--seed N] [--minutes N]``: run the fault suite; exit with status 1 on a violation."""

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.suite.injections import FAULTS
from tests.faults.suite.plan import Plan
from tests.faults.suite.run import Run, write
from tests.faults.suite.store import clock_works
from tests.faults.suite.world import World
from tidegate.store.embedded import server_binary

OUT = Path(__file__).parents[3] / "out" / "faults.json"


def main() -> int:
    """Run the suite once."""
    parser = argparse.ArgumentParser(description="Run the fault suite.")
    parser.add_argument("--seed", type=int, default=None, help="seed of the run; by default, a new one")
    parser.add_argument("--minutes", type=float, default=30.0, help="time in which faults are injected")
    parser.add_argument("--server", default=server_binary(), help="server of the store: Valkey or Redis")
    parser.add_argument("--only", action="append", default=[], choices=sorted(FAULTS), help="fault to inject")
    parser.add_argument("--continue", dest="continues", action="store_true", help='writers use on_outage="continue"')
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = Path(tempfile.mkdtemp(prefix="tidegate-faults-"))
    has_clock = clock_works(given.server, directory / "probe")
    with World(Plan.of(seed, given.continues), directory, given.server, has_clock) as world:
        outcome = Run(world, lambda line: print(line, flush=True)).run(given.minutes, given.only)
    write(outcome, OUT)
    print(outcome.table())
    if outcome.violations:
        print(f"Failed with seed {seed}. The whole history is in {directory}. Repeat: make faults SEED={seed}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
