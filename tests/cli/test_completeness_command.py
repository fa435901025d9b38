"""tidegate completeness: the lag that is complete enough and quick enough, or why there is none."""

import json

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import CONFIG, report_delays


@pytest.fixture
def job_with_delays(http: httpx.Client, job_name: str) -> str:
    """Of 200 rows 9 came 20 s late and one 5 min; the watermark moves in steps of 100 s."""
    http.put(f"/v1/jobs/{job_name}", json=CONFIG | {"max_future_skew_ms": None}, headers={"If-None-Match": "*"})
    path = f"/v1/jobs/{job_name}"
    report_delays(http, path, {"a": []}, max_event_time=1_000_000)
    report_delays(http, path, {"a": [(0, 190), (20_000, 9), (300_000, 1)]}, max_event_time=1_000_000)
    report_delays(http, path, {"a": []}, max_event_time=1_100_000)
    return job_name


def test_the_lag_that_meets_both(run: Run, job_with_delays: str) -> None:
    ended = run("completeness", job_with_delays, "--max-latency", "2m", "--min-completeness", "0.99")
    assert "The least lag with this completeness is 20 s" in ended.stderr or "is 19 s" in ended.stderr
    assert "completeness 99.50 %" in ended.stderr
    assert "in force" in ended.stdout and "for the target" in ended.stdout
    told = json.loads(run("completeness", job_with_delays, "--min-completeness", "0.99", "--json").stdout)
    assert told["chosen_lag_ms"] == pytest.approx(20_000, rel=0.02)
    told = json.loads(run("completeness", job_with_delays, "--max-latency", "60s", "--json").stdout)
    assert told["chosen_lag_ms"] == 10_000
    assert told["wait_ms"] == 50_000


def test_why_none_does(run: Run, job_with_delays: str) -> None:
    ended = run("completeness", job_with_delays, "--max-latency", "60s", "--min-completeness", "0.99", status=3)
    assert "No lag meets both: 99.00 % needs a latency of 1 min" in ended.stderr
    assert "1 min gives 95.00 %" in ended.stderr
    ended = run("completeness", job_with_delays, "--max-latency", "10s", status=3)
    assert "No lag has this latency: without any lag it is 50 s" in ended.stderr


def test_without_delays_there_is_nothing_to_choose_from(run: Run, http: httpx.Client, job_name: str) -> None:
    http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"})
    assert "No delays are measured" in run("completeness", job_name).stderr
    run("completeness", job_name, "--min-completeness", "0.9", status=3)
    assert "not a duration" in run("completeness", job_name, "--max-latency", "soon", status=2).stderr
    assert "substream_not_found" in run("completeness", job_name, "--substream", "x", status=1).stderr
