"""``tidegate late``: updated, dropped and diverted rows by substream and hour."""

import json

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import CONFIG, HOUR, commit_rows

AFTERNOON = 376_992 + 14  # 2013-01-03T14:00Z


@pytest.fixture
def lossy(http: httpx.Client, job_name: str) -> str:
    http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    rows = {"on_time": [291, 50], "late": [9, 0], "updated": [2, 0]}
    hours = [[[AFTERNOON, 100, 2, 1], [AFTERNOON + 1, 202, 0, 8]], [[AFTERNOON, 50, 0, 0]]]
    commit_rows(http, f"/v1/jobs/{job_name}", 0, substreams=["HNL", "SFO"], hours=hours, **rows)
    return job_name


def test_late_rows_of_a_job(run: Run, lossy: str) -> None:
    result = run("late", lossy).stdout.splitlines()
    assert result[1].split() == ["352", "9", "(2.56", "%)", "-", "2", "(0.568", "%)"]
    assert result[-1].split() == [
        "q",
        "HNL",
        "2013-01-03",
        "14:00:00Z",
        "2013-01-03",
        "16:00:00Z",
        "302",
        "9",
        "(2.98",
        "%)",
        "-",
        "2",
        "(0.662",
        "%)",
    ]
    by_hour = run("late", lossy, "--hours").stdout.splitlines()[-2:]
    assert [line.split()[2:5] for line in by_hour] == [["150", "1", "(0.667"], ["202", "8", "(3.96"]]


def test_late_rows_of_one_substream(run: Run, lossy: str) -> None:
    result = json.loads(run("late", lossy, "--substream", "SFO", "--query", "q", "--json").stdout)
    assert (result["dropped"], result["spans"], result["hours"][0]["start"]) == (0, [], AFTERNOON * HOUR)
    assert len(run("late", lossy, "--substream", "SFO", "--query", "q").stdout.splitlines()) == 2
    assert json.loads(run("late", lossy, "--substream", "SFO", "--json").stdout) | {"now_ms": 0} == result | {
        "now_ms": 0
    }
    assert "substream_not_found" in run("late", lossy, "--substream", "XXX", status=1).stderr


def test_several_queries_with_the_substream_are_named(run: Run, lossy: str, http: httpx.Client) -> None:
    """`--query` is needed only if several queries have a substream of that name."""
    http.post(f"/v1/jobs/{lossy}:report", json={"substreams": ["SFO"], "max_event_times": [1]}).raise_for_status()
    for command in ("late", "completeness"):
        several = run(command, lossy, "--substream", "SFO", status=2)
        assert "several queries" in several.output and "'', 'q'" in several.output
        run(command, lossy, "--substream", "SFO", "--query", "q")
