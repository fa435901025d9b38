"""The commands about frames, against a coordinator."""

import json
import time
from threading import Timer

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import BASE, CONFIG, HOUR, HOURS, commit_frames

START = "2013-01-07T10:00Z"


@pytest.fixture
def hourly(http: httpx.Client, job_name: str) -> str:
    """Create a job with a complete hour, an empty one, and an open one."""
    path = f"/v1/jobs/{job_name}"
    http.put(path, json=CONFIG | HOURS, headers={"If-None-Match": "*"}).raise_for_status()
    commit_frames(http, path, 0, {"a": BASE, "b": BASE})
    commit_frames(http, path, 1, {"a": BASE + 2 * HOUR + 11, "b": BASE + 2 * HOUR + 11})
    return job_name


def test_frames_are_listed(run: Run, hourly: str) -> None:
    lines = run("frames", hourly).stdout.splitlines()
    assert [line.split()[4:6] for line in lines[1:]] == [["open", "-"], ["empty", "1"], ["complete", "1"]]
    assert [line.split()[0] for line in run("frames", hourly, "--state", "complete").stdout.splitlines()[1:]] == [
        "2013-01-07"
    ]
    page = json.loads(run("frames", hourly, "--limit", "1", "--json").stdout)
    assert f"--to {page['next']}" in run("frames", hourly, "--limit", "1").stdout
    assert len(run("frames", hourly, "--from", START, "--to", "2013-01-07T11:00Z").stdout.splitlines()) == 2
    assert "no state" in run("frames", hourly, "--state", "done", status=2).output


def test_a_corrected_frame_and_its_events(run: Run, http: httpx.Client, hourly: str) -> None:
    commit_frames(http, f"/v1/jobs/{hourly}", 2, {"a": BASE + 2 * HOUR + 12}, late=3)
    shown = run("frames", hourly, "--from", START, "--to", "2013-01-07T11:00Z").stdout.splitlines()[1]
    assert shown.split()[4:9] == ["complete", "2", "2", "0", "3"]
    told = run("history", hourly, "--kind", "frame").stdout
    assert "generation 2 (later rows); 3 dropped" in told
    assert "2 frames, 1 of them empty; complete" in told


def test_a_shell_script_waits_for_a_frame(run: Run, http: httpx.Client, hourly: str) -> None:
    path = f"/v1/jobs/{hourly}"
    assert "is complete: 2 on time" in run("wait", hourly, "--frame", START).stdout
    assert "is empty" in run("wait", hourly, "--frame", "2013-01-07T11:00Z").stdout
    later = "2013-01-07T12:00Z"
    assert "is open" in run("wait", hourly, "--frame", later, "--timeout", "1s", status=3).stdout
    http.post(
        f"{path}/substreams:idle", json={"query": "q", "substreams": ["b"], "reason": "broken"}
    ).raise_for_status()
    timer = Timer(0.3, commit_frames, [http, path, 2, {"a": BASE + 3 * HOUR + 11}])
    timer.start()
    assert "without q/b (idle)" in run("wait", hourly, "--frame", later, "--timeout", "30s").stdout
    timer.join()
    run("wait", hourly, "--frame", later, "--complete-only", status=5)
    commit_frames(http, path, 3, {"a": BASE + 5 * HOUR + 11})
    empty = run("wait", hourly, "--frame", "2013-01-07T14:00Z", "--timeout", "0s", status=3).stdout
    assert "It has no row, but was read without q/b (idle), and is open until each of these has passed its end" in empty
    http.post(f"{path}:complete", json={"reason": "the end"}).raise_for_status()
    began = time.monotonic()
    assert "the job is complete" in run("wait", hourly, "--frame", "2013-01-08T14:00Z", status=1).output
    assert time.monotonic() - began < 60
    run("wait", hourly, "--frame", START, "--complete-only")


def test_options_that_do_not_belong_together(run: Run, hourly: str) -> None:
    assert "--frame" in run("wait", hourly, "--frame", START, "--at-least", START, status=2).output
    assert "needs --frame" in run("wait", hourly, "--at-least", START, "--complete-only", status=2).output


def test_explain_names_the_frame_that_waits(run: Run, hourly: str) -> None:
    expected = "The frame from 2013-01-07 12:00:00Z to 2013-01-07 13:00:00Z waits for a of q."
    assert expected in run("explain", hourly).stdout
