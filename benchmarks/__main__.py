"""``python -m benchmarks [overhead | lateness]``: runs a benchmark; exit status 1 where a target is missed.

``BENCH_ROUNDS`` (9) and ``BENCH_OUT`` (``out/bench``) are taken from the environment.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import lateness, overhead


def show(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    which = sys.argv[1] if len(sys.argv) > 1 else "overhead"
    out = Path(os.environ.get("BENCH_OUT", "out/bench"))
    out.mkdir(parents=True, exist_ok=True)
    return {"overhead": run_overhead, "lateness": run_lateness}[which](out)


def run_lateness(out: Path) -> int:
    with overhead.session() as spark:
        found = lateness.run(spark, out / "lateness", show)
    (out / "lateness.json").write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    show("\n" + lateness.table(found))
    return 0


def run_overhead(out: Path) -> int:
    rounds = int(os.environ.get("BENCH_ROUNDS", "9"))
    found = overhead.run(out, rounds, show)
    ratios = {count: {name: asdict(ratio) for name, ratio in of.items()} for count, of in found.items()}
    (out / "overhead.json").write_text(json.dumps({"rounds": rounds, "ratios": ratios}, indent=2) + "\n")
    show("\n" + overhead.table(found))
    return 0 if overhead.met(found) else 1


if __name__ == "__main__":
    sys.exit(main())
