"""``tidegate completeness``: the lag that meets both bounds, or the reason why no lag does."""

import json

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import CONFIG, report_delays


@pytest.fixture
def job_with_delays(http: httpx.Client, job_name: str) -> str:
    """Create a job with 200 rows: 9 have a delay of 20 s, and one has a delay of 5 min. Reports advance by 100 s."""
    http.put(f"/v1/jobs/{job_name}", json=CONFIG | {"max_future_skew_ms": None}, headers={"If-None-Match": "*"})
    path = f"/v1/jobs/{job_name}"
    report_delays(http, path, {"a": []}, max_event_time=1_000_000)
    report_delays(http, path, {"a": [(0, 190), (20_000, 9), (300_000, 1)]}, max_event_time=1_000_000)
    report_delays(http, path, {"a": []}, max_event_time=1_100_000)
    return job_name


def test_a_lag_meets_both_bounds(run: Run, job_with_delays: str) -> None:
    ended = run("completeness", job_with_delays, "--max-latency", "2m", "--min-completeness", "0.99")
    assert "The shortest lag with this completeness is 20 s" in ended.stderr or "is 19 s" in ended.stderr
    assert "completeness 99.5 %" in ended.stderr
    assert "in force" in ended.stdout and "for the target" in ended.stdout
    result = json.loads(run("completeness", job_with_delays, "--min-completeness", "0.99", "--json").stdout)
    assert result["chosen_lag_ms"] == pytest.approx(20_000, rel=0.02)
    result = json.loads(run("completeness", job_with_delays, "--max-latency", "60s", "--json").stdout)
    assert result["chosen_lag_ms"] == 10_000
    assert result["wait_ms"] == 50_000


def test_no_lag_meets_both_bounds(run: Run, job_with_delays: str) -> None:
    ended = run("completeness", job_with_delays, "--max-latency", "60s", "--min-completeness", "0.99", status=3)
    assert "No lag meets both bounds: 99 % needs a latency of 1 min" in ended.stderr
    assert "1 min gives 95 %" in ended.stderr
    ended = run("completeness", job_with_delays, "--max-latency", "10s", status=3)
    assert "No lag has this latency: even without lag, the latency is 50 s" in ended.stderr


def test_without_delays_no_lag_is_chosen(run: Run, http: httpx.Client, job_name: str) -> None:
    http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"})
    assert "No delays are measured" in run("completeness", job_name).stderr
    run("completeness", job_name, "--min-completeness", "0.9", status=3)
    assert "not a duration" in run("completeness", job_name, "--max-latency", "soon", status=2).stderr
    assert "substream_not_found" in run("completeness", job_name, "--substream", "x", status=1).stderr
