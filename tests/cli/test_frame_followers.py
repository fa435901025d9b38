"""Programs that follow frames, as real processes: each generation of each frame is delivered, also after a crash."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.cli.conftest import Run
from tests.support.api import BASE, CONFIG, HOUR, HOURS, commit_frames, read
from tests.support.waiting import until
from tidegate.cli.following import Delivery
from tidegate.cli.frames import MAX_FRAME_BYTES, variables
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import key_of
from tidegate_spark.testing import CoordinatorProcess

Start = Callable[..., "subprocess.Popen[str]"]
LOG = 'echo "$TIDEGATE_KEY" >> log'


@pytest.fixture
def path(http: httpx.Client, job_name: str) -> str:
    """Create a job with hourly frames; return its path."""
    path = f"/v1/jobs/{job_name}"
    http.put(path, json=CONFIG | HOURS, headers={"If-None-Match": "*"}).raise_for_status()
    return path


@pytest.fixture
def start(tidegate: CoordinatorProcess, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a command in the test's folder."""
    with ExitStack() as ended:

        def start(*arguments: str, url: str = tidegate.url) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidegate", *arguments],
                env=os.environ | {"TIDEGATE_URL": url, "PYTHONUNBUFFERED": "1"},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ended.callback(process.communicate)
            ended.callback(process.kill)
            return process

        yield start


def key(path: str, hour: int, generation: int = 1) -> str:
    return f"{path.rpartition('/')[2]}__2013-01-07T{10 + hour:02}:00:00Z__g{generation}"


def logged(folder: Path, name: str = "log") -> list[str]:
    log = folder / name
    return log.read_text().split() if log.exists() else []


def finish(http: httpx.Client, path: str, batch: int, hours: int) -> None:
    """Commit a row at the start of an hour, which finishes the hours before it. The hours are counted from BASE."""
    commit_frames(http, path, batch, {"a": BASE + hours * HOUR + 11})


def position(http: httpx.Client, path: str, consumer: str) -> Any:
    return read(http, f"{path}/consumers/{consumer}")["consumer"]["position"]


def once(run: Run, job: str, *more: str) -> list[str]:
    """Follow a job once; return the keys of the deliveries."""
    return [json.loads(line)["key"] for line in run("frames", job, "--once", *more).stdout.splitlines()]


def test_each_generation_is_delivered_once(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    finish(http, path, 0, 0)
    assert once(run, job_name) == []
    finish(http, path, 1, 1)
    assert once(run, job_name) == [key(path, 0)]
    assert once(run, job_name) == []
    finish(http, path, 2, 2)
    commit_frames(http, path, 3, {"a": BASE + 2 * HOUR + 12}, late=3)
    assert once(run, job_name) == [key(path, 1), key(path, 0, 2)]
    assert once(run, job_name, "--as", "other") == [key(path, 0), key(path, 1), key(path, 0, 2)]
    assert read(http, f"{path}/consumers/default")["consumer"]["lease_until_ms"] is None


def test_frames_that_are_finished_together(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    """One record of the history has several frames. Those without rows are delivered only if the user asks for them."""
    for batch, hours in enumerate((0, 2, 3)):
        commit_frames(http, path, batch, {"a": BASE + hours * HOUR + 11, "b": BASE})
    commit_frames(http, path, 3, {"a": BASE + 5 * HOUR + 11, "b": BASE + 5 * HOUR + 11})
    assert read(http, f"{path}/history", kind="frame")["records"][0]["count"] == 5
    assert once(run, job_name) == [key(path, hour) for hour in (0, 2, 3)]
    empty = once(run, job_name, "--as", "all", "--state", "empty", "--state", "complete")
    assert empty == [key(path, hour) for hour in range(5)]
    later = once(run, job_name, "--as", "later", "--from", "2013-01-07T12:30Z")
    assert later == [key(path, hour) for hour in (2, 3)]


def test_a_frame_that_is_proven_empty_later_is_delivered_then(
    run: Run, http: httpx.Client, path: str, job_name: str
) -> None:
    """It was finished before the position, but stayed open until the excluded substream had passed its end."""
    everything = ("--state", "empty", "--state", "complete", "--state", "complete_with_exclusions")
    commit_frames(http, path, 0, {"a": BASE, "b": BASE})
    http.post(f"{path}/substreams:idle", json={"query": "q", "substreams": ["b"], "reason": "t"}).raise_for_status()
    commit_frames(http, path, 1, {"a": BASE + 2 * HOUR + 11})
    commit_frames(http, path, 2, {"a": BASE + 3 * HOUR + 11})
    assert once(run, job_name, *everything) == [key(path, 0), key(path, 2)]
    commit_frames(http, path, 3, {"a": BASE + 3 * HOUR + 12, "b": BASE + 3 * HOUR + 11})
    assert once(run, job_name, *everything) == [key(path, 1)]


def test_a_line_has_the_frame(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    delivered = json.loads(run("frames", job_name, "--once").stdout)
    assert (delivered["job"], delivered["generation"]["generation"]) == (job_name, 1)
    assert delivered["frame"] == read(http, f"{path}/frames/{BASE}")["frame"]
    assert re.fullmatch(r"[A-Za-z0-9_.~:+-]+", delivered["key"])


def test_frames_after_a_reset_are_delivered(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    """A reset keeps the position. The frames after it have higher generations."""
    for batch in (0, 1):
        finish(http, path, batch, batch)
    assert once(run, job_name) == [key(path, 0)]
    http.post(f"{path}:reset", json={"reason": "again"}).raise_for_status()
    assert once(run, job_name) == []
    for batch in (0, 1):
        finish(http, path, batch, batch)
    assert once(run, job_name) == [key(path, 0, 2)]


def test_other_frames_are_delivered_after_their_declaration(
    run: Run, http: httpx.Client, path: str, job_name: str
) -> None:
    for batch in (0, 1):
        finish(http, path, batch, batch)
    assert once(run, job_name) == [key(path, 0)]
    halves = CONFIG | {"frames": {"every": HOUR // 2, "correction_delay_ms": 0}}
    http.put(path, json=halves, headers={"If-Match": "*"}).raise_for_status()
    commit_frames(http, path, 2, {"a": BASE + 2 * HOUR + 11})
    assert once(run, job_name) == [key(path, 1, 2)]


def test_a_command_gets_the_frame_in_its_environment(
    start: Start, http: httpx.Client, path: str, tmp_path: Path
) -> None:
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    job = path.rpartition("/")[2]
    script = f'{sys.executable} -c "import json, os; print(json.dumps(dict(os.environ)))" > given'
    assert start("frames", job, "--once", "--exec", script).wait(60) == 0
    given = json.loads((tmp_path / "given").read_text())
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    expected = {
        "TIDEGATE_JOB": job,
        "TIDEGATE_KEY": key(path, 0),
        "TIDEGATE_FRAME_START": "2013-01-07T10:00:00Z",
        "TIDEGATE_FRAME_END": "2013-01-07T11:00:00Z",
        "TIDEGATE_FRAME_START_MS": str(BASE),
        "TIDEGATE_FRAME_END_MS": str(BASE + HOUR),
        "TIDEGATE_GENERATION": "1",
        "TIDEGATE_STATE": "complete",
        "TIDEGATE_WATERMARK": str(BASE + HOUR + 1),
    }
    assert {name: given[name] for name in expected} == expected
    assert json.loads(given["TIDEGATE_FRAME"]) == frame


def test_a_frame_with_many_names_fits_into_the_environment() -> None:
    """Linux limits a variable to 128 KiB, and would refuse to start the command."""
    named = [{"substream": "q/" + "x" * 198, "watermark": None}] * 20
    excluded = [{"reason": "evict", "count": 20, "substreams": named, "partitions": []}] * 50
    frame = {"start": 0, "end": 1, "state": "complete_with_exclusions", "watermark": None, "exclusions": excluded}
    given = variables(Delivery("j", {**frame, "silent": None}, {"generation": 1, "at_ms": 0}))
    assert len(given["TIDEGATE_FRAME"]) < MAX_FRAME_BYTES
    assert len(json.loads(given["TIDEGATE_FRAME"])["exclusions"]) == 50
    assert given["TIDEGATE_WATERMARK"] == ""


def test_a_follower_waits_for_events(start: Start, http: httpx.Client, path: str) -> None:
    follower = start("frames", path.rpartition("/")[2], "--follow")
    assert follower.stdout is not None
    for batch in range(4):
        finish(http, path, batch, batch)
    assert [json.loads(follower.stdout.readline())["key"] for _ in range(3)] == [key(path, hour) for hour in range(3)]
    commit_frames(http, path, 4, {"a": BASE + 3 * HOUR + 12}, late=3)
    assert json.loads(follower.stdout.readline())["key"] == key(path, 0, 2)
    http.delete(path).raise_for_status()
    assert follower.wait(60) == 0


def test_a_process_that_dies_after_a_delivery_delivers_it_again_with_the_same_key(
    start: Start, http: httpx.Client, path: str, tmp_path: Path
) -> None:
    """It dies after the command has worked, and before the position has moved."""
    job = path.rpartition("/")[2]
    for batch in range(4):
        finish(http, path, batch, batch)
    dies_once = f"{LOG}; case $TIDEGATE_KEY in *T11:*) [ -e died ] || {{ touch died; kill -9 $PPID; }};; esac"
    assert start("frames", job, "--once", "--lease", "1s", "--exec", dies_once).wait(60) == -signal.SIGKILL
    assert position(http, path, "default")["start"] == BASE
    until(lambda: read(http, f"{path}/consumers/default")["consumer"]["lease_until_ms"] is None, "the lease has ended")
    assert start("frames", job, "--once", "--exec", dies_once).wait(60) == 0
    assert logged(tmp_path) == [key(path, hour) for hour in (0, 1, 1, 2)]


def test_one_of_two_replicas_works_and_the_other_one_takes_over(
    start: Start, http: httpx.Client, path: str, tmp_path: Path
) -> None:
    job = path.rpartition("/")[2]
    finish(http, path, 0, 0)
    first = start("frames", job, "--follow", "--lease", "1s", "--exec", f"{LOG}; echo 1 >> who")
    until(lambda: http.get(f"{path}/consumers/default").is_success, "the first one has the lease")
    second = start("frames", job, "--follow", "--lease", "1s", "--exec", f"{LOG}; echo 2 >> who")
    assert second.stderr is not None and "works until" in second.stderr.readline()
    finish(http, path, 1, 1)
    until(lambda: position(http, path, "default") is not None, "a frame is delivered")
    first.kill()
    finish(http, path, 2, 2)
    until(lambda: len(logged(tmp_path, "who")) == 2, "the other frame is delivered")
    assert "works from now on" in second.stderr.readline()
    assert (logged(tmp_path), logged(tmp_path, "who")) == ([key(path, 0), key(path, 1)], ["1", "2"])


def test_a_suspended_process_does_not_undo_the_work_of_its_successor(
    start: Start, http: httpx.Client, path: str, tmp_path: Path
) -> None:
    """Its delivery counts for nothing, and it waits for the lease."""
    job = path.rpartition("/")[2]
    for batch in range(3):
        finish(http, path, batch, batch)
    slow = start(
        "frames", job, "--follow", "--lease", "1s", "--exec", f"{LOG}; until [ -e continue ]; do sleep 0.1; done"
    )
    until(lambda: len(logged(tmp_path)) == 1, "a delivery runs")
    slow.send_signal(signal.SIGSTOP)
    next_one = start("frames", job, "--follow", "--lease", "1s", "--exec", 'echo "$TIDEGATE_KEY" >> log2')
    until(lambda: len(logged(tmp_path, "log2")) == 2, "the successor has delivered all")
    (tmp_path / "continue").touch()
    slow.send_signal(signal.SIGCONT)
    assert slow.stderr is not None
    assert "[consumer_held]" in slow.stderr.readline()
    finish(http, path, 3, 3)
    until(lambda: len(logged(tmp_path, "log2")) == 3, "the successor goes on")
    assert (logged(tmp_path), logged(tmp_path, "log2")) == ([key(path, 0)], [key(path, hour) for hour in range(3)])
    assert next_one.poll() is None


def test_a_lease_is_renewed_while_a_delivery_runs(start: Start, http: httpx.Client, path: str) -> None:
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    slow = start("frames", path.rpartition("/")[2], "--once", "--lease", "1s", "--exec", "sleep 3")
    until(lambda: http.get(f"{path}/consumers/default").is_success, "it has the lease")
    while slow.poll() is None:
        consumer = read(http, f"{path}/consumers/default")["consumer"]
        assert consumer["lease_until_ms"] is not None or slow.wait(5) == 0
    assert position(http, path, "default")["start"] == BASE


def test_no_frame_is_lost_when_the_history_is_cut(
    start: Start, tmp_path: Path, valkey: EmbeddedValkey, job_name: str
) -> None:
    """The coordinator keeps 10,000 records for seven days. A program may have been off for longer."""
    path, key_of_history = f"/v1/jobs/{job_name}", key_of(job_name, "journal")
    with ExitStack() as opened:
        process = opened.enter_context(CoordinatorProcess(tmp_path / "data", redis_url=valkey.url))
        http = opened.enter_context(httpx.Client(base_url=process.url, timeout=30))
        redis = opened.enter_context(Redis.from_url(valkey.url))
        http.put(path, json=CONFIG | HOURS, headers={"If-None-Match": "*"}).raise_for_status()
        for batch in range(3):
            finish(http, path, batch, batch)
        assert start("frames", job_name, "--once", "--exec", LOG, url=process.url).wait(60) == 0
        for batch in range(3, 6):
            finish(http, path, batch, batch)
        commit_frames(http, path, 6, {"a": BASE + 5 * HOUR + 12}, late=3)
        finish(http, path, 7, 6)
        redis.xtrim(key_of_history, maxlen=1, approximate=False)
        finish(http, path, 8, 7)
        assert start("frames", job_name, "--once", "--exec", LOG, url=process.url).wait(60) == 0
    expected = [key(path, 0), key(path, 1), *(key(path, hour) for hour in (2, 3, 4)), key(path, 0, 2)]
    assert logged(tmp_path) == [*expected, key(path, 5), key(path, 6)]


def test_a_command_that_fails_is_repeated_and_holds_the_position(
    start: Start, http: httpx.Client, path: str, tmp_path: Path
) -> None:
    job = path.rpartition("/")[2]
    for batch in range(3):
        finish(http, path, batch, batch)
    fails = f"{LOG}; case $TIDEGATE_KEY in *T11:*) exit 3;; esac"
    follower = start("frames", job, "--follow", "--exec", fails, "--pause", "0.01s")
    assert follower.wait(120) == 6
    assert follower.stderr is not None
    lines = follower.stderr.read().splitlines()
    assert len(lines) == 10
    assert "ended with status 3, in attempt 1 of 10; the next attempt is in 0.01 s." in lines[0]
    assert "The position stays before it" in lines[-1]
    assert logged(tmp_path) == [key(path, 0)] + 10 * [key(path, 1)]
    assert read(http, f"{path}/consumers/default")["consumer"]["lease_until_ms"] is None
    assert start("frames", job, "--once", "--exec", LOG).wait(60) == 0
    assert logged(tmp_path)[11:] == [key(path, 1)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_gives_the_lease_back(
    start: Start, http: httpx.Client, path: str, tmp_path: Path, number: signal.Signals
) -> None:
    """The command of a shell gets SIGTERM, too. The next process delivers the frame again."""
    job = path.rpartition("/")[2]
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    command = "trap 'echo ended >> log; exit 1' TERM; echo begun >> log; sleep 60 & wait $!"
    follower = start("frames", job, "--follow", "--exec", command)
    until(lambda: logged(tmp_path) == ["begun"], "the command runs")
    follower.send_signal(number)
    assert follower.wait(30) == 0
    assert logged(tmp_path) == ["begun", "ended"]
    consumer = read(http, f"{path}/consumers/default")["consumer"]
    assert (consumer["lease_until_ms"], consumer["position"]) == (None, None)
    assert start("frames", job, "--once", "--exec", LOG).wait(60) == 0
    assert logged(tmp_path)[2:] == [key(path, 0)]


def test_once_ends_while_another_process_works(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    """Two starts by cron do not wait for each other."""
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    http.put(f"{path}/consumers/default", json={"owner": "other", "lease_ms": 60_000}).raise_for_status()
    ended = run("frames", job_name, "--once")
    assert (ended.stdout, "process other works" in ended.stderr) == ("", True)


def test_consumers_are_listed_and_forgotten(run: Run, http: httpx.Client, path: str, job_name: str) -> None:
    assert run("consumers", job_name).stdout == f"{job_name}: no consumers.\n"
    finish(http, path, 0, 0)
    finish(http, path, 1, 1)
    once(run, job_name, "--as", "load")
    line = run("consumers", job_name).stdout.splitlines()[1].split()
    assert line[:4] == ["load", "2013-01-07", "10:00:00Z", "1"]
    assert json.loads(run("consumers", job_name, "--json").stdout)["consumers"][0]["consumer"] == "load"
    assert "forgotten" in run("forget-consumer", job_name, "load", "--reason", "again").stdout
    assert "consumer load; (again)" in run("history", job_name, "--kind", "action").stdout
    assert "[consumer_not_found]" in run("forget-consumer", job_name, "load", status=1).stderr
    assert once(run, job_name, "--as", "load") == [key(path, 0)]


def test_options_of_a_follower(run: Run, job_name: str) -> None:
    assert "needs --follow" in run("frames", job_name, "--exec", "true", status=2).output
    assert "omit --to" in run("frames", job_name, "--follow", "--to", "2013-01-07", status=2).output
    assert "no state" in run("frames", job_name, "--follow", "--state", "done", status=2).output
    assert "not a duration" in run("frames", job_name, "--once", "--lease", "soon", status=2).output
