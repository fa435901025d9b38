"""``python -m benchmarks [overhead | native | lateness | waiting | sizing | service]``.

The exit status is 1 if a target is missed.

The environment variables ``BENCH_ROUNDS`` (default: 9) and ``BENCH_OUT`` (default: ``out/bench``) set the number of
rounds and the directory of the results.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import lateness, overhead, service, sizing, waiting


def show(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    benchmarks = {
        "overhead": run_overhead,
        "native": run_native,
        "lateness": run_lateness,
        "waiting": run_waiting,
        "sizing": run_sizing,
        "service": run_service,
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("which", nargs="?", choices=list(benchmarks), default="overhead")
    which = parser.parse_args().which
    out = Path(os.environ.get("BENCH_OUT", "out/bench"))
    out.mkdir(parents=True, exist_ok=True)
    return benchmarks[which](out)


def run_lateness(out: Path) -> int:
    with overhead.session() as spark:
        found = lateness.run(spark, out / "lateness", show)
    (out / "lateness.json").write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    show("\n" + lateness.table(found))
    return 0


def run_waiting(out: Path) -> int:
    found = waiting.run(out, show)
    document = {kind: [asdict(one) for one in rounds] for kind, rounds in found.items()}
    (out / "waiting.json").write_text(json.dumps(document, indent=2) + "\n")
    return 0 if waiting.met(found) else 1


def run_sizing(out: Path) -> int:
    found = sizing.run(out, show)
    (out / "sizing.json").write_text(json.dumps(asdict(found), indent=2) + "\n")
    return 0


def run_service(out: Path) -> int:
    found = service.run_all(out, rounds_asked_for(), show)
    document = [{**asdict(cell), "rounds": [asdict(cost) for cost in costs]} for cell, costs in found.items()]
    (out / "service.json").write_text(json.dumps(document, indent=2) + "\n")
    show("\n" + service.table(found))
    return 0


def run_native(out: Path) -> int:
    rounds = rounds_asked_for()
    found = overhead.run_native(out, rounds, show)
    document = {"rounds": rounds, "ratios": {name: asdict(ratio) for name, ratio in found.items()}}
    (out / "native.json").write_text(json.dumps(document, indent=2) + "\n")
    show("\nratio to Spark's own watermark: median [lowest .. highest]")
    for name, ratio in found.items():
        show(f"  {name:<22} {ratio}")
    return 0


def rounds_asked_for() -> int:
    return int(os.environ.get("BENCH_ROUNDS", "9"))


def run_overhead(out: Path) -> int:
    rounds = rounds_asked_for()
    found = overhead.run(out, rounds, show)
    ratios = {count: {name: asdict(ratio) for name, ratio in of.items()} for count, of in found.items()}
    (out / "overhead.json").write_text(json.dumps({"rounds": rounds, "ratios": ratios}, indent=2) + "\n")
    show("\n" + overhead.table(found))
    return 0 if overhead.met(found) else 1


if __name__ == "__main__":
    sys.exit(main())
