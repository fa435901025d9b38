"""``python -m tests.conformance``: play all traces on both sides; exit with status 1 if a trace fails."""

import os
import sys
import tempfile
from pathlib import Path

from tests.conformance.report import run
from tests.conformance.rig import DomainSide, StoreSide
from tests.support.driver import Driver
from tidegate.store.embedded import EmbeddedValkey


def main() -> int:
    folder = Path(os.environ.get("CONFORMANCE_DIR") or Path(__file__).parent)
    print(f"Traces of {folder}", flush=True)
    with tempfile.TemporaryDirectory() as data, EmbeddedValkey(Path(data)) as valkey:
        lua = StoreSide(lambda: Driver(valkey.url))
        try:
            outcomes = run(folder, [DomainSide(), lua], lambda line: print(line, flush=True))
        except (OSError, ValueError) as error:
            print(f"Cannot read the traces: {error}", file=sys.stderr)
            return 2
        finally:
            lua.close()
    failed = sum(len(outcome.failed) for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
