"""``python -m tests.fuzz``: send hostile requests to a coordinator; exit with status 1 if it answers one wrongly."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.fuzz.run import MAX_GROWTH_MB, Result, Run

WARM_UP = 20_000
"""Number of requests at the begin and at the end whose memory is compared."""


def main(
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 100_000,
    seed: Annotated[int | None, typer.Option(help="Seed of the requests. By default, the current time.")] = None,
    request: Annotated[int | None, typer.Option(help="Number of the only request to send.")] = None,
) -> None:
    """Send hostile requests to a coordinator with an embedded Valkey."""
    chosen = int(time.time()) if seed is None else seed
    print(f"Seed {chosen}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), chosen, lambda line: print(line, flush=True))
        if request is not None:
            case = run.cases.case(request)
            print(f"{case.kind}, {case.operation}: {case.wire[:10_000]!r}")
            result = run.one(request)
        else:
            result = run.numbers(requests, min(WARM_UP, requests))
    _show(result, chosen)
    sys.exit(1 if result.wrong(chosen) else 0)


def _show(result: Result, seed: int) -> None:
    for text in result.wrong(seed):
        print(text)
    for kind, number in result.kinds.most_common():
        print(f"  {kind:12} {number:7} requests, slowest {result.slowest_s[kind]:.1f} s")
    print(
        f"{result.requests} requests with the seed {seed}: {len(result.failures)} wrong answers, memory grew by "
        f"{result.grown_mb:.0f} MB to {result.peak_mb:.0f} MB (limit: {MAX_GROWTH_MB} MB)."
    )


if __name__ == "__main__":
    typer.run(main)
