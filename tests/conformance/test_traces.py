"""Both implementations return the reference's results at every step of every trace."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.report import run
from tests.conformance.rig import DomainSide, Side, StoreSide
from tests.conformance.traces import FILES, read
from tests.support.driver import Driver
from tidegate.store.embedded import EmbeddedValkey

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def sides(valkey: EmbeddedValkey) -> Iterator[list[Side]]:
    lua = StoreSide(lambda: Driver(valkey.url))
    yield [DomainSide(), lua]
    lua.close()


def run_conformance(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command of ``make conformance`` on another folder of traces."""
    return subprocess.run(
        [sys.executable, "-m", "tests.conformance"],
        env={**os.environ, "CONFORMANCE_DIR": str(folder)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )


def test_every_trace_passes_on_both_sides(sides: list[Side]) -> None:
    outcomes = run(HERE, sides, print)
    assert not [outcome.line() for outcome in outcomes if outcome.failed]
    for outcome in outcomes:
        assert outcome.passed + outcome.left_out.total() == len(read(HERE / f"{outcome.file}.jsonl"))
        if outcome.side == "domain":
            assert not outcome.left_out
        else:
            assert set(outcome.left_out) <= {"numbers beyond 2^53 - 1", "a restore that moves the watermark back"}


def test_a_trace_that_fails_is_named_and_the_command_fails(tmp_path: Path) -> None:
    for file in FILES:
        some = (HERE / f"{file}.jsonl").read_text().splitlines()[:20]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(some) + "\n")
    path = tmp_path / "coalescer.jsonl"
    first, *rest = path.read_text().splitlines()
    trace = json.loads(first)
    trace["steps"][4]["expect"] = {"emit": 99}
    path.write_text("\n".join([json.dumps(trace), *rest]) + "\n")
    done = run_conformance(tmp_path)
    assert done.returncode == 1
    assert done.stdout.count(f"{trace['name']}, step 4: expected {{'emit': 99}}, got {{'emit': 12}}") == 2
    assert "2 failed" in done.stdout


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    """A wrong CONFORMANCE_DIR ends in an error."""
    done = run_conformance(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Cannot read the traces: ")
