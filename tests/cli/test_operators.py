"""The commands for operators, against a coordinator."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Run
from tests.support.api import CONFIG, RUN, commit_frames
from tests.support.driver import Driver
from tests.support.waiting import until
from tidegate import __version__
from tidegate.__main__ import cli
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate.cli import history, options
from tidegate.cli.coordinator import Coordinator
from tidegate.domain.history import AuditInfo
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

LATER = "2013-01-14T00:00Z"
BASE = 1_357_552_800_000  # 2013-01-07 10:00


@pytest.fixture
def flights(http: httpx.Client, job_name: str) -> str:
    """Create a job with three substreams, one of which is named like markup, and an open batch."""
    http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    http.put(f"/v1/jobs/{job_name}/queries/departures/batches/0", json=RUN).raise_for_status()
    body = {"substreams": ["HNL", "[red]ANC[/]", "BOS"], "max_event_times": [BASE, BASE + 60_000, BASE + 120_000]}
    http.post(f"/v1/jobs/{job_name}:report", json=body).raise_for_status()
    return job_name


def test_jobs(run: Run, flights: str) -> None:
    [line] = [line for line in run("jobs").stdout.splitlines() if flights in line]
    assert "batch 0 of departures" in line
    [result] = [result for result in json.loads(run("jobs", "--json").stdout) if result["job"] == flights]
    assert result["substreams"]["active"] == 3


def test_the_status_of_a_job(run: Run, flights: str) -> None:
    """The output starts with a sentence and shows names unchanged."""
    shown = run("status", flights).stdout
    assert shown.startswith(f"{flights}: No watermark yet: held by batch 0 of departures, open for ")
    order = [line.split()[0] for line in shown.splitlines() if line.split()[:1] in (["HNL"], ["[red]ANC[/]"], ["BOS"])]
    assert order == ["HNL", "[red]ANC[/]", "BOS"], "rows must be sorted by watermark"
    result = json.loads(run("status", flights, "--json", "--limit", "1").stdout)
    assert (len(result["substreams"]), result["queries"][0]["query"]) == (1, "departures")


def test_explain_and_remove_a_holder(run: Run, flights: str) -> None:
    """An operator finds the holder, retires the query, marks substreams as idle, and reads the history."""
    assert "batch 0 of departures" in run("explain", flights).stdout
    run("retire", flights, "departures", "--reason", "ended")
    result = run("explain", flights).stdout
    assert "HNL" in result and "2013-01-07 10:00:59.990Z" in result, (
        "the explanation must show the watermark without HNL"
    )
    done = run("idle", flights, "HNL", "[red]ANC[/]", "--reason", "strike").stdout
    assert "Complete up to 2013-01-07 10:01:59.990Z; held by BOS, the slowest substream." in done
    assert "Nothing changed" in run("idle", flights, "HNL", "--reason", "strike").stdout
    history = run("history", flights, "--kind", "action").stdout
    assert "idle" in history and "[red]ANC[/]" in history and "(strike)" in history
    result = json.loads(run("history", flights, "--json", "--limit", "1").stdout)
    assert result["records"][0]["kind"] == "emission"
    as_of = run("history", flights, "--as-of", "2100-01-01").stdout
    assert "the watermark was 2013-01-07 10:01:59.990Z, held by BOS." in as_of
    assert "the job had no watermark" in run("history", flights, "--as-of", "2000-01-01").stdout


def test_actions_are_recorded_with_their_reasons(run: Run, http: httpx.Client, flights: str) -> None:
    """Each action is recorded with its reason."""
    run("declare", flights, "NEW", "--query", "departures", "--reason", "one")
    run("done", flights, "HNL", "--reason", "two")
    run("evict", flights, "BOS", "--reason", "three")
    run("hold", flights, "--at-most", LATER, "--reason", "four", "--hold", "mine", "--duration", "2h")
    held = http.get(f"/v1/jobs/{flights}").json()["holds"]
    assert (held[0]["hold"], held[0]["at_most"], held[0]["expires_ms"] is not None) == ("mine", 1_358_121_600_000, True)
    run("release", flights, "mine", "--reason", "five")
    run("hand-over", flights, "departures", "arrivals", "--reason", "six")
    completed = run("complete", flights, "--reason", "seven").stdout
    assert completed.endswith("Complete: the input has ended at 2013-01-07 10:01:00.001Z.\n")
    run("reopen", flights, "--reason", "eight")
    records = http.get(f"/v1/jobs/{flights}/history", params={"kind": "action"}).json()["records"]
    result = [(record["action"], record["reason"]) for record in records[::-1]]
    assert result == [
        ("declare", "one"),
        ("done", "two"),
        ("evict", "three"),
        ("hold", "four"),
        ("release", "five"),
        ("hand_over", "six"),
        ("complete", "seven"),
        ("reopen", "eight"),
    ]


def test_a_missing_reason_is_prompted_for(run: Run, flights: str) -> None:
    assert "Reason:" in run("idle", flights, "HNL", input="asked\n").stdout
    assert "(asked)" in run("history", flights).stdout


def test_wait_exits_with_a_status(run: Run, http: httpx.Client, flights: str) -> None:
    """`wait` exits with 0 when the watermark is reached, and with 3 after the timeout."""
    run("retire", flights, "departures", "--reason", "ended")
    assert "held by" in run("wait", flights, "--at-least", "2013-01-07T09:00Z").stdout
    assert "held by" in run("wait", flights, "--at-least", LATER, "--timeout", "1s", status=3).stdout
    result = run("wait", flights, "--at-least", LATER, "--timeout", "0s", "--json", status=3)
    assert json.loads(result.stdout)["reached"] is False
    times = {"substreams": ["HNL", "[red]ANC[/]", "BOS"], "max_event_times": [1_358_121_700_000] * 3}
    later = Thread(target=lambda: http.post(f"/v1/jobs/{flights}:report", json=times))
    later.start()
    run("wait", flights, "--at-least", LATER, "--timeout", "10m")
    later.join()


def test_unwritten_results_are_named(run: Run, http: httpx.Client, job_name: str) -> None:
    path, run_of = f"/v1/jobs/{job_name}", {"query_id": "c", "run_id": "r"}
    http.put(path, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    http.put(f"{path}/queries/hourly/batches/0", json={**run_of, "output_watermark": None}).raise_for_status()
    about = {"query": "hourly", **run_of, "batch_id": 0, "partition": 0}
    times = {"substreams": ["HNL"], "max_event_times": [BASE + 10], "batch": about}
    http.post(f"{path}:report", json=times).raise_for_status()
    http.post(f"{path}/queries/hourly/batches/0:commit", json=run_of).raise_for_status()
    wait = ("wait", job_name, "--at-least", str(BASE), "--timeout", "0s")
    nothing = "No results are written yet: query hourly has not written its own up to 2013-01-07 10:00:00Z."
    assert nothing in run("explain", job_name).stdout
    assert nothing in run(*wait, status=3).stdout
    assert "Complete up to 2013-01-07 10:00:00Z" in run(*wait, "--read").stdout, "the rows are read"
    told = {**run_of, "observed_ms": 0, "caught_up": [], "output_watermark": BASE - 3_600_000}
    http.post(f"{path}/queries/hourly:heartbeat", json=told).raise_for_status()
    written = "Results are written up to 2013-01-07 09:00:00Z: query hourly has not written its own up to"
    assert written in run("explain", job_name).stdout
    shown = run("status", job_name).stdout
    assert re.search(r"written watermark +2013-01-07 09:00:00Z", shown), shown
    assert re.search(r"hourly +0 +no +2013-01-07 09:00:00Z", shown), shown
    assert "results written" not in run("history", job_name, "--kind", "emission").stdout
    assert "2013-01-07 09:00:00Z" in run("history", job_name, "--kind", "written").stdout
    http.post(f"{path}/queries/hourly:heartbeat", json={**told, "output_watermark": BASE}).raise_for_status()
    assert run(*wait).stdout.count("\n") == 1
    assert (
        "--read needs --at-least"
        in run("wait", job_name, "--query", "q", "--offsets", '{"t":{"0":1}}', "--read", status=2).stderr
    )


def test_offsets_are_shown_and_awaited(run: Run, http: httpx.Client, job_name: str) -> None:
    path, run_of = f"/v1/jobs/{job_name}", {"query_id": "c", "run_id": "r"}
    config = {"policy": {"type": "limiting_lag", "lag_ms": 0}}
    http.put(path, json=config, headers={"If-None-Match": "*"}).raise_for_status()
    wait = ("wait", job_name, "--query", "q", "--timeout", "1s", "--offsets", '{"t":{"0":10,"1":0}}')
    assert "t/0 (at no offset, not 10)" in run(*wait, status=3).stdout, "the query has not begun"
    for batch, end in enumerate((4, 9)):
        told = {"partitions": ["t/0", "t/1"], "starts": [5 * batch, 0], "ends": [end, 0], "latest": [1500, 0]}
        http.put(f"{path}/queries/q/batches/{batch}", json=run_of).raise_for_status()
        about = {"query": "q", **run_of, "batch_id": batch, "partition": 0}
        http.post(
            f"{path}:report", json={"substreams": ["a"], "max_event_times": [1], "batch": about}
        ).raise_for_status()
        body = {**run_of, "offsets": {**told, "behind_ms": [180_000, 0], "open_transactions": ["t/0"]}}
        http.post(f"{path}/queries/q/batches/{batch}:commit", json=body).raise_for_status()
    for command in ("status", "explain"):
        shown = run(command, job_name).stdout
        assert re.search(r"t/0 +q +1,491 +3 min +open", shown), shown
        assert "t/1" not in shown
    assert re.search(r"offsets_skipped +1 offsets of t/0; query q; batch_id 1", run("history", job_name).stdout)
    skipped = "Skipped offsets, whose records were never read: 1."
    assert run(*wait, status=3).stdout == f"Not committed: t/0 (at 9, not 10). {skipped}\n"
    assert json.loads(run(*wait, "--json", status=3).stdout)["reached"] is False
    reached = (*wait[:-1], '{"t":{"0":9,"1":0}}')
    assert run(*reached).stdout == f"All of these offsets are committed. {skipped}\n"
    for wrong in ("", "[]", "{}", '{"t":{"x":1}}', '{"t":{"0":"1"}}', '{"t":1}'):
        assert "expected JSON with an end offset" in run(*wait[:-1], wrong, status=2).stderr
    for form in ([], ["--at-least", "5", "--query", "q"], ["--query", "q"], ["--offsets", "{}"]):
        refused = run("wait", job_name, *form, status=2).stderr
        assert "give either --at-least, or --frame, or --query and --offsets" in refused


def test_a_time_in_seconds_is_refused_without_force(run: Run, flights: str) -> None:
    """`date +%s` prints seconds. A wait for them would end at once for every current job."""
    seconds = str(BASE // 1000)
    for command in (
        ("wait", flights, "--timeout", "0s", "--at-least", seconds),
        ("restore", flights, "HNL", "--query", "", "--reason", "x", "--watermarks", seconds),
        ("hold", flights, "--reason", "x", "--at-most", seconds),
        ("complete", flights, "--reason", "x", "--up-to", seconds),
    ):
        refusal = run(*command, status=1).stderr
        assert f"{seconds} looks like Unix seconds; write {BASE}, in milliseconds" in refusal, refusal
    assert "held by" in run("wait", flights, "--timeout", "0s", "--at-least", seconds, "--force", status=3).stdout
    assert "looks like Unix seconds" in run("history", flights, "--as-of", seconds, status=1).stderr


@pytest.mark.parametrize(("max_future_skew_ms", "is_doubted"), [(86_400_000, True), (None, False)])
def test_status_doubts_event_times_in_seconds(
    run: Run, http: httpx.Client, job_name: str, max_future_skew_ms: int | None, is_doubted: bool
) -> None:
    """Devices that send seconds keep a job running in January 1970. A job whose times have another unit says so."""
    path = f"/v1/jobs/{job_name}"
    config = CONFIG | {"max_future_skew_ms": max_future_skew_ms}
    http.put(path, json=config, headers={"If-None-Match": "*"}).raise_for_status()
    http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [BASE // 1000]}).raise_for_status()
    for text in (run("status", job_name).stdout, http.get(f"/jobs/{job_name}").text):
        assert ("All event times are early in 1970, as seconds would be." in " ".join(text.split())) == is_doubted


def test_skewed_substreams_are_named(run: Run, http: httpx.Client, job_name: str) -> None:
    path = f"/v1/jobs/{job_name}"
    http.put(path, json=CONFIG | {"max_skew_ms": 6 * 3_600_000}, headers={"If-None-Match": "*"}).raise_for_status()
    times = {"HNL": BASE - 9 * 3_600_000, "ANC": BASE - 7 * 3_600_000, "BOS": BASE, "DEN": BASE, "SEA": BASE}
    body = {"substreams": list(times), "max_event_times": list(times.values())}
    http.post(f"{path}:report", json=body).raise_for_status()
    sentence = "HNL and 1 more are up to 9 h behind the median, limit 6 h, and do not hold the watermark."
    for text in (run("explain", job_name).stdout, http.get(f"/jobs/{job_name}").text):
        assert sentence in " ".join(re.sub("<[^>]*>", "", text).split())
    rows = json.loads(run("status", job_name, "--json").stdout)["substreams"]
    assert [row["substream"] for row in rows if row["state"] == "skewed"] == ["HNL", "ANC"]


def test_substreams_that_are_not_waited_for_are_named(run: Run, http: httpx.Client, job_name: str) -> None:
    path, hour = f"/v1/jobs/{job_name}", 3_600_000
    limit = {"frames": {"every": 60_000}, "arrival_target": 0.998, "max_arrival_delay_ms": hour}
    http.put(path, json=CONFIG | limit, headers={"If-None-Match": "*"}).raise_for_status()
    now_ms = http.get(path).json()["now_ms"]
    commit_frames(http, path, 0, {"fast": now_ms - 1000, "HNL": now_ms - 2 * hour})
    commit_frames(http, path, 1, {"fast": now_ms})
    sentence = (
        "HNL of q is 2 h behind what the queries have read, and does not hold the watermark: few rows arrive later"
    )
    for text in (run("explain", job_name).stdout, http.get(f"/jobs/{job_name}").text):
        assert sentence in " ".join(re.sub("<[^>]*>", "", text).split())
    assert "; each frame waits 1 h for its rows." in run("explain", job_name).stdout
    fact = "within 1 h of the end of their frame (not learned yet; target 99.8 %, so far 100 %)"
    for text in (run("status", job_name).stdout, http.get(f"/jobs/{job_name}").text):
        assert fact in " ".join(re.sub("<[^>]*>", "", text).split())


def test_what_a_limit_would_do(run: Run, http: httpx.Client, job_name: str) -> None:
    path, hour = f"/v1/jobs/{job_name}", 3_600_000
    http.put(path, json=CONFIG | {"frames": {"every": "hour"}}, headers={"If-None-Match": "*"}).raise_for_status()
    times = {"HNL": BASE - 9 * hour, "BOS": BASE, "DEN": BASE}
    commit_frames(http, path, 0, times)
    shown = run("explain", job_name, "--what-if", "max_skew=6h", "--what-if", "arrival_target=0.998").stdout
    text = " ".join(shown.split())
    assert "max_skew 6 h would set HNL of q apart now, and let the watermark move to " in text
    assert "Rows that it sends below that time would be late; so far, it has sent 1 row in batches." in text
    assert "arrival_target 99.8 % is not known yet: it needs 500 rows" in text
    assert "would set no substream apart now" in run("explain", job_name, "--what-if", "max_skew=1d").stdout
    for wrong in ("skew=6h", "arrival_target=7", "arrival_target=most", "lag=1h", "max_skew=six", "max_skew=0s"):
        assert "write max_skew=DURATION" in run("explain", job_name, "--what-if", wrong, status=2).output
    twice = run("explain", job_name, "--what-if", "max_skew=1h", "--what-if", "max_skew=2h", status=2)
    assert "each once" in twice.output


def test_wait_outlives_a_restart(tmp_path: Path) -> None:
    """The command is in scripts that run for hours. `watch --json` ends with the job, as `watch` does."""
    process = CoordinatorProcess(tmp_path / "data")

    def start(*arguments: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"TIDEGATE_URL": process.url, "PYTHONUNBUFFERED": "1"}
        command, pipe = [sys.executable, "-m", "tidegate", *arguments], subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    with process:
        config = {"policy": {"type": "limiting_lag", "lag_ms": 0}}
        httpx.put(f"{process.url}/v1/jobs/j", json=config, headers={"If-None-Match": "*"}).raise_for_status()
        waiting = start("wait", "j", "--at-least", "100", "--timeout", "10m")
        until(lambda: "tidegate_waiting_clients 1.0" in httpx.get(f"{process.url}/metrics").text, "it waits")
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith("tidegate: ")
    with process:
        watching = start("watch", "j", "--json")
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["event"] == "state"
        body = {"substreams": ["a"], "max_event_times": [100]}
        httpx.post(f"{process.url}/v1/jobs/j:report", json=body).raise_for_status()
        output, _ = waiting.communicate(timeout=120)
        assert waiting.returncode == 0, output
        httpx.delete(f"{process.url}/v1/jobs/j", headers={"If-Match": "*"}).raise_for_status()
        output, _ = watching.communicate(timeout=120)
        assert json.loads(output.splitlines()[-1])["event"] == "deleted"
        assert watching.returncode == 0


def test_every_command_says_why_nothing_holds_the_watermark(run: Run, http: httpx.Client, job_name: str) -> None:
    """`status` and `explain` give the same reason: only future event times, all substreams idle, or the throttle."""
    config = CONFIG | {"throttle": {"type": "min_step", "min_step_ms": 1000}}
    http.put(f"/v1/jobs/{job_name}", json=config, headers={"If-None-Match": "*"}).raise_for_status()
    body: dict[str, object] = {"substreams": ["fast clock"], "max_event_times": [time.time_ns() // 1_000]}
    http.post(f"/v1/jobs/{job_name}:report", json=body).raise_for_status()
    shown = run("explain", job_name).stdout
    assert "No data reported yet, except event times too far in the future" in shown
    assert shown.splitlines()[0] == run("status", job_name).stdout.splitlines()[0]
    assert f"1 rows and reports; `tidegate history {job_name} --kind future` names" in run("status", job_name).stdout
    assert "fast clock" in run("history", job_name, "--kind", "future").stdout
    for event_time in (BASE, BASE + 500):
        body = {"substreams": ["HNL"], "max_event_times": [event_time]}
        http.post(f"/v1/jobs/{job_name}:report", json=body).raise_for_status()
    run("idle", job_name, "HNL", "--reason", "strike")
    assert ": all substreams are idle" in run("status", job_name).stdout
    assert (
        ": all substreams are idle; the throttle waits for a merged watermark of 2013-01-07 10:00:00.990Z."
        in run("explain", job_name).stdout
    )


def test_an_action_says_where_the_watermark_goes(run: Run, http: httpx.Client, flights: str) -> None:
    """While an open batch holds W, the answer to an action names the value to which W moves after the batch."""
    run("declare", flights, "SFO", "--query", "departures", "--reason", "planned")
    after = "The watermark moves to 2013-01-07 10:00:59.990Z when the open batches that hold it are committed."
    run("idle", flights, "SFO", "--query", "departures", "--reason", "late")
    for verb in ("done", "evict"):
        assert after in run(verb, flights, "HNL", "--reason", "closed").stdout
    run("retire", flights, "departures", "--reason", "ended")
    assert http.get(f"/v1/jobs/{flights}/watermark").json()["watermark"] == BASE + 59_990


def test_eviction_undoes_done(run: Run, http: httpx.Client, job_name: str) -> None:
    """A topic that was ended and created again counts after its old substreams are evicted."""
    http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()

    def report(event_time: int) -> object:
        body = {"substreams": ["topic-0"], "max_event_times": [event_time]}
        return http.post(f"/v1/jobs/{job_name}:report", json=body).raise_for_status().json()["watermark"]

    report(BASE)
    run("done", job_name, "topic-0", "--reason", "topic deleted")
    assert report(BASE + 60_000) == BASE - 10
    run("evict", job_name, "topic-0", "--reason", "topic created again")
    assert report(BASE + 60_000) == BASE + 59_990


def test_watch_continues_after_records_of_other_kinds(tidegate: CoordinatorProcess, flights: str, run: Run) -> None:
    """The position moves with records that `--kind` omits, so that a reconnection does not start far behind."""
    with closing(Coordinator(tidegate.url).events(flights, None, kind=["emission"])) as events:
        state = next(event for event in events if event.data)
        assert state.event == "state"
        run("evict", flights, "HNL", "--reason", "closed")
        position = next(event for event in events if event.id != state.id)
    assert position.data == ""
    assert position.id > state.id


@pytest.mark.parametrize(
    ("form", "first"), [((), None), (("--json", "--after", "5-0"), "5-0")], ids=["text", "JSON after an id"]
)
def test_watch_tries_again_while_the_coordinator_cannot_serve(
    monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...], first: str | None
) -> None:
    """A restart of Redis must not end a script that follows a job. The end of the job does, with status 0.

    The reason is shown once. A script that starts again continues after the last record that it has processed.
    """
    received: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = 200, "application/json", b"{}"
            if "watch" in self.path:
                received.append(self.headers.get("Last-Event-ID"))
                status, kind, body = ANSWERS[len(received) - 1]
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("TIDEGATE_URL", f"http://127.0.0.1:{server.server_port}")
            monkeypatch.setattr(history, "RECONNECT_S", 0.01)
            ended = CliRunner().invoke(cli, ["watch", "j", *form])
        finally:
            server.shutdown()
            thread.join()
    assert (ended.exit_code, received) == (0, [first, first, first, "7"])
    assert ended.stderr.count("[store_unavailable]") == 1
    assert "deleted" in ended.stdout.splitlines()[-1]


ANSWERS = (
    (503, "application/problem+json", b'{"code": "store_unavailable", "detail": "Redis does not answer."}'),
    (503, "application/problem+json", b'{"code": "store_unavailable", "detail": "Redis does not answer."}'),
    (200, "text/event-stream", b"id: 7\n\n: no record\n\n"),
    (200, "text/event-stream", b"id: 9\nevent: deleted\ndata: {}\n\n"),
)


def test_watch_prints_events(tidegate: CoordinatorProcess, http: httpx.Client, flights: str) -> None:
    """`watch` prints one line per event and ends when the job is deleted."""
    environment = os.environ | {"TIDEGATE_URL": tidegate.url, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate", "watch", flights], env=environment, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert "state" in watching.stdout.readline()
        http.post(
            f"/v1/jobs/{flights}/substreams:evict", json={"substreams": ["HNL"], "reason": "closed"}
        ).raise_for_status()
        line = watching.stdout.readline()
        assert "evict" in line and "HNL; (closed)" in line
        http.delete(f"/v1/jobs/{flights}").raise_for_status()
        lines = watching.stdout.read().splitlines()
        assert lines[-1] == "The job was deleted."
    assert watching.returncode == 0


def test_errors_are_one_line(run: Run, flights: str) -> None:
    """An error is one line, and its kind determines the exit status."""
    refused: tuple[tuple[tuple[str, ...], int, str], ...] = (
        (("status", "there-is-none"), 1, "The job does not exist"),
        (("done", flights, "nobody", "--reason", "x"), 1, "[substream_not_found]"),
        (("jobs", "--url", "http://127.0.0.1:9"), 4, "TIDEGATE_URL"),
        (("jobs", "--url", "nowhere"), 4, "nowhere"),
    )
    for arguments, status, expected in refused:
        ended = run(*arguments, status=status)
        [line] = ended.stderr.splitlines()
        assert expected in line
    wrong: tuple[tuple[str, ...], ...] = (
        ("wait", flights, "--at-least", "tomorrow"),
        ("wait", flights, "--at-least", LATER, "--timeout", "soon"),
        ("status", flights, "--limit", "0"),
        ("watch", flights, "--after", "yesterday"),
    )
    for arguments in wrong:
        run(*arguments, status=2)


def test_a_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The history names the key that TIDEGATE_TOKEN contains. Without a key, the command is refused."""
    file = tmp_path / "keys.json"
    key = keyring.create(file, "oncall", Role.OPERATE, "")
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file)) as process:
        monkeypatch.setenv("TIDEGATE_URL", process.url)
        assert "[key_required]" in run("jobs", status=1).stderr
        monkeypatch.setenv("TIDEGATE_TOKEN", key)
        headers = {"If-None-Match": "*", "Authorization": f"Bearer {key}"}
        httpx.put(f"{process.url}/v1/jobs/j", json=CONFIG, headers=headers).raise_for_status()
        run("hold", "j", "--at-most", "5", "--reason", "looking")
        assert "by oncall; (looking)" in run("history", "j").stdout


def test_the_query_of_a_substream_is_optional(run: Run, flights: str, http: httpx.Client) -> None:
    """`--query` is needed only if several queries have a substream of that name."""
    path = f"/v1/jobs/{flights}"
    http.post(f"{path}:declare", json={"substreams": ["LIH", "BOS"], "query": "departures"}).raise_for_status()
    run("idle", flights, "LIH", "--reason", "closed")
    rows = http.get(f"{path}/substreams", params={"name": "LIH"}).json()["substreams"]
    assert [(row["query"], row["state"]) for row in rows] == [("departures", "idle")]
    several = run("idle", flights, "BOS", "--reason", "closed", status=2)
    assert "several queries" in several.output and "'departures'" in several.output
    run("idle", flights, "BOS", "--reason", "closed", "--query", "")
    assert "XXX" in run("done", flights, "XXX", "--reason", "closed", status=1).output


def test_watermarks_are_never_truncated(run: Run, flights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, names are wrapped, but times and numbers stay on one line."""
    monkeypatch.setattr(options, "WIDE", 80)
    watermark = "2013-01-07 10:00:00Z"
    run("hold", flights, "--at-most", str(BASE), "--reason", "x", "--hold", "n" * 100)
    for shown in (run("jobs").stdout, run("status", flights).stdout, run("explain", flights).stdout):
        assert "\u2026" not in shown
    assert "late" in run("jobs").stdout.splitlines()[0].split()
    assert watermark in run("status", flights).stdout


def test_a_wrong_kind_names_the_choices(run: Run, flights: str) -> None:
    wrong = run("history", flights, "--kind", "emissions", status=2)
    assert "'emission'" in wrong.output and "'coalesced_watermark'" in wrong.output


def test_a_missing_key_names_its_variable(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keyring.create(path, "one", Role.READ, "")
    with CoordinatorProcess(tmp_path, keys_file=str(path)) as process:
        refused = run("jobs", "--url", process.url, status=1)
    assert "Set TIDEGATE_TOKEN to a key" in refused.output


def test_no_message_has_the_key_or_a_password(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error of a scheduled command is kept in logs. A key from a file often ends in a line break."""
    for url in ("http://ann:s3cret@127.0.0.1:1", "http://ann:s3cret@127.0.0.1:port"):
        refused = run("jobs", "--url", url, status=2)
        assert "user name or a password" in refused.output and "s3cret" not in refused.output
    for key in ("s3cret\n", "s3crét", "s3 cret"):
        monkeypatch.setenv("TIDEGATE_TOKEN", key)
        refused = run("jobs", "--url", "http://127.0.0.1:1", status=2)
        assert "TIDEGATE_TOKEN has white space" in refused.output and "s3" not in refused.output


def test_help_imports_no_slow_packages() -> None:
    """The command line starts without FastAPI, httpx and pydantic, whose import takes most of a second."""
    program = "import sys; from tidegate.__main__ import cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {"fastapi", "httpx", "pydantic", "redis", "uvicorn"}


def test_invisible_characters_are_shown_as_escapes(
    run: Run, valkey: EmbeddedValkey, driver: Driver, job_name: str, tmp_path: Path
) -> None:
    """Stored texts can have control characters from older versions; a terminal must not interpret these."""
    with CoordinatorProcess(tmp_path, redis_url=valkey.url, log_format="text") as process:
        url = ("--url", process.url)
        path = f"{process.url}/v1/jobs/{job_name}"
        httpx.put(path, json=CONFIG, headers={"If-None-Match": "*"}, timeout=30).raise_for_status()
        names = ["a\u202eb", "zero\u200bwidth"]
        httpx.post(
            f"{path}:report", json={"substreams": names, "max_event_times": [1, 2]}, timeout=30
        ).raise_for_status()
        driver(driver.store.actions.idle(job_name, "", [names[0]], AuditInfo("old", "\x1b[31mred\x1b[0m\nnext")))
        shown = run("status", job_name, *url).stdout + run("explain", job_name, *url).stdout
        result = run("history", job_name, *url).stdout
        page = httpx.get(f"{process.url}/jobs/{job_name}", timeout=30).raise_for_status().text
        httpx.get(f"{process.url}/v1/jobs/{job_name}/substreams", params={"query": "\x1b[31m"}, timeout=30)
    assert "a\\u202eb" in shown and "zero\\u200bwidth" in shown
    assert "\\x1b[31mred\\x1b[0m\\nnext" in result
    assert "a\\u202eb" in page and "\\x1b[31mred" in page
    for text in (shown, result, page):
        assert not {"\x1b", "\u202e", "\u200b"} & set(text)
    assert "\x1b" not in (tmp_path / "coordinator.log").read_text()


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"tidegate {__version__}\n"
