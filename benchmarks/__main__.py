"""``python -m benchmarks``: runs the benchmarks; exit status 1 where a target is missed.

``BENCH_ROUNDS`` (9) and ``BENCH_OUT`` (``out/bench``) are taken from the environment.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import overhead


def main() -> int:
    rounds = int(os.environ.get("BENCH_ROUNDS", "9"))
    out = Path(os.environ.get("BENCH_OUT", "out/bench"))
    out.mkdir(parents=True, exist_ok=True)
    found = overhead.run(out, rounds, lambda line: print(line, flush=True))
    ratios = {count: {name: asdict(ratio) for name, ratio in of.items()} for count, of in found.items()}
    (out / "overhead.json").write_text(json.dumps({"rounds": rounds, "ratios": ratios}, indent=2) + "\n")
    print("\n" + overhead.table(found))
    return 0 if overhead.met(found) else 1


if __name__ == "__main__":
    sys.exit(main())
