"""``python -m benchmarks [NAME]`` runs a benchmark, and prints a table with targets.

The exit status is 1 if a target is missed. The results are also in ``summary.json``.

The environment variables ``BENCH_ROUNDS`` (default: 9) and ``BENCH_OUT`` (default: ``out/bench``) set the number of
rounds and the directory of the results.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    appends,
    audit,
    batches,
    frames,
    jobs,
    kafka,
    lateness,
    limits,
    overhead,
    page,
    postgres,
    reports,
    scripts,
    small_batches,
    sweeps,
    tables,
    tenants,
    waiting,
)
from benchmarks.flink import side_by_side
from benchmarks.results import Row, table, write_summary

Benchmark = Callable[[Path, int, Callable[[str], None]], list[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "reports": reports.run,
    "batches": batches.run,
    "jobs": jobs.run,
    "scripts": scripts.run,
    "tenants": tenants.run,
    "sweeps": sweeps.run,
    "postgres": postgres.run,
    "waiting": waiting.run,
    "overhead": overhead.run,
    "native": overhead.run_native,
    "small": small_batches.run,
    "kafka": kafka.run,
    "tables": tables.run,
    "appends": appends.run,
    "audit": audit.run,
    "lateness": lateness.run,
    "limits": limits.run,
    "page": page.run,
    "frames": frames.run,
    "flink": side_by_side.run,
}


def show(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", choices=list(BENCHMARKS), default="reports")
    name = parser.parse_args().name
    out = Path(os.environ.get("BENCH_OUT", "out/bench"))
    out.mkdir(parents=True, exist_ok=True)
    rows = BENCHMARKS[name](out, int(os.environ.get("BENCH_ROUNDS", "9")), show)
    write_summary(out / "summary.json", name, rows)
    show("\n" + table(rows))
    return int(any(row.is_missed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
