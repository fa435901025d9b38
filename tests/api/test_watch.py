"""Event streams of a job: complete, without duplicates, and independent of slow clients."""

import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.support.api import CONFIG, problem
from tests.support.events import watching
from tests.support.waiting import until
from tidegate.domain.history import RECORDS_KEPT
from tidegate.runtime import feed
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.replies import order
from tidegate_spark.testing import CoordinatorProcess

Make = Callable[..., str]


def report(http: httpx.Client, path: str, **max_event_times: int) -> None:
    body = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())}
    http.post(f"{path}:report", json=body).raise_for_status()


def emissions(events: list[Any]) -> list[int]:
    return [event.data["watermark"] for event in events if event.name == "emission"]


def test_the_state_precedes_the_events(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """The stream starts with the job's state. Its events have the content and the ids of the history's records."""
    path = make_job()
    report(http, path, a=100, b=60)
    with watching(tidegate.url + path) as events:
        [state] = events.take(1)
        assert (state.name, state.data["watermark"], state.data["held_by"]["substream"]) == ("state", 50, "b")
        http.post(f"{path}/substreams:idle", json={"substreams": ["b"], "reason": "paused"}).raise_for_status()
        idle, emission = events.take(2)
        assert (idle.data["action"], idle.data["reason"]) == ("idle", "paused")
        assert (emission.name, emission.data["watermark"]) == ("emission", 90)
        report(http, path, b=70)
        [wake] = events.take(1)
        assert (wake.name, wake.data["substreams"]) == ("active", ["/b"])
    kept = http.get(f"{path}/history").json()["records"]
    assert [idle.data, emission.data, wake.data] == kept[2::-1]
    assert [event.id for event in (idle, emission, wake)] == [record["id"] for record in kept[2::-1]]


def test_a_wait_ends_when_the_results_are_written(
    http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make
) -> None:
    """A query with windows writes them after the commit of their rows. With `read`, a wait ends with this commit."""
    path, run_of = make_job(policy={"type": "limiting_lag", "lag_ms": 0}), {"query_id": "c", "run_id": "r"}
    batch = f"{path}/queries/q/batches/0"
    http.put(batch, json={**run_of, "output_watermark": None}).raise_for_status()
    about = {"query": "q", **run_of, "batch_id": 0, "partition": 0}
    http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [100], "batch": about}).raise_for_status()
    with ThreadPoolExecutor(1) as pool, watching(tidegate.url + path, kind="written") as events:
        events.take(1)
        waiting = pool.submit(http.get, f"{path}/watermark", params={"at_least": 60, "timeout_s": 300})
        read = pool.submit(httpx.get, f"{tidegate.url}{path}/watermark", params={"at_least": 60, "read": True})
        committed = http.post(f"{batch}:commit", json=run_of).json()
        assert (committed["watermark"], committed["written_watermark"]) == (100, None)
        assert committed["written_held_by"] == "q"
        [row] = http.get(f"{path}/queries").json()["queries"]
        assert (row["tells_output"], row["output_watermark"]) == (True, None)
        told = {**run_of, "observed_ms": 0, "caught_up": [], "output_watermark": 60}
        http.post(f"{path}/queries/q:heartbeat", json=told).raise_for_status()
        assert waiting.result().json()["written_watermark"] == 60
        assert read.result().json()["reached"] is True
        [written] = events.take(1)
    assert (written.name, written.data["written_watermark"], written.data["watermark"]) == ("written", 60, 100)
    for asked, reached in (({"at_least": 61}, False), ({"at_least": 100, "read": True}, True)):
        answer = http.get(f"{path}/watermark", params={**asked, "timeout_s": 0}).json()
        assert answer["reached"] is reached


def test_a_reconnection_misses_nothing(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """A client that reconnects with its last event id receives every emission once."""
    path = make_job(policy={"type": "limiting_lag", "lag_ms": 0})
    seen: list[int] = []
    with watching(tidegate.url + path) as events:
        events.take(1)
        for time in range(1, 8):
            report(http, path, a=time)
        seen += emissions(events.until(3))
        last = events.last_id
    for time in range(8, 20):
        report(http, path, a=time)
        if time % 4 == 0:
            with watching(tidegate.url + path, after=last) as events:
                seen += emissions(events.until(time - 2))
                last = events.last_id
    with watching(tidegate.url + path, after=last) as events:
        seen += emissions(events.until(19))
    assert seen == list(range(1, 20))


def test_replicas_send_the_same_events(tmp_path: Path, valkey: EmbeddedValkey, job_name: str) -> None:
    """A stream at one replica has the events that another one caused, and can be resumed at any replica."""
    one = CoordinatorProcess(tmp_path / "one", redis_url=valkey.url)
    two = CoordinatorProcess(tmp_path / "two", redis_url=valkey.url)
    path = f"/v1/jobs/{job_name}"
    with one, two, httpx.Client(base_url=one.url, timeout=30) as http:
        http.put(path, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        with watching(two.url + path) as events, ThreadPoolExecutor(1) as pool:
            events.take(1)
            waiting = pool.submit(httpx.get, f"{two.url}{path}/watermark?at_least=40&timeout_s=60", timeout=70)
            report(http, path, a=30)
            report(http, path, a=50)
            assert emissions(events.until(40)) == [20, 40]
            assert waiting.result().json()["reached"] is True
            last = events.last_id
        report(http, path, a=60)
        with watching(one.url + path, after=last) as events:
            assert emissions(events.until(50)) == [50]


def test_an_unknown_event_id_gets_a_reset(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """If the last event id is unknown, the stream starts with a reset event that has the job's state."""
    path = make_job()
    report(http, path, a=100)
    for known in ("now", "0-0", "9999999999999999-9999999999999999999"):
        with watching(tidegate.url + path, after=known) as events:
            assert events.take(1)[0].name == "reset"
    with watching(tidegate.url + path, after="5-0") as events:
        [reset] = events.take(1)
        assert (reset.name, reset.data["watermark"]) == ("reset", 90)
        assert reset.id == http.get(f"{path}/history").json()["records"][0]["id"]
        report(http, path, a=110)
        assert emissions(events.take(1)) == [100]


def test_a_reset_is_an_event(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """A reset sends an event, because it is the only operation that lowers the watermark."""
    path = make_job()
    report(http, path, a=100)
    with watching(tidegate.url + path, kind="emission") as events:
        [emission] = events.take(1)
        assert emission.data["watermark"] == 90
        incarnation = http.get(path).json()["incarnation"]
        http.post(f"{path}:reset", json={"reason": "poisoned"}).raise_for_status()
        [reset] = events.take(1)
        assert (reset.name, reset.data["incarnation"], reset.data["watermark"]) == ("reset", incarnation + 1, None)
        report(http, path, a=30)
        assert emissions(events.take(1)) == [20]


def test_a_reconnection_at_a_reset_gets_the_current_state(
    http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make
) -> None:
    """A client that reconnects after the record of a reset gets the reset event with the current state."""
    path = make_job()
    report(http, path, a=5000)
    http.post(f"{path}:reset", json={"reason": "poisoned"}).raise_for_status()
    [record] = http.get(f"{path}/history", params={"kind": "action"}).json()["records"]
    report(http, path, a=1000)
    with watching(tidegate.url + path, after=record["id"], kind="emission") as events:
        [reset] = events.take(1)
        assert (reset.name, reset.data["watermark"]) == ("reset", 990)
        report(http, path, a=1010)
        assert emissions(events.take(1)) == [1000]


def test_a_new_job_of_the_same_name_has_new_ids(
    http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make
) -> None:
    """All ids of the new job's records are greater than those of the deleted job."""
    path = make_job()
    for _ in range(20):
        last = http.get(f"{path}/history").json()["records"][0]["id"]
        http.delete(path).raise_for_status()
        make_job()
        first = http.get(f"{path}/history").json()["records"][-1]["id"]
        assert order(first) > order(last)
    with watching(tidegate.url + path, after=last) as events:
        assert events.take(1)[0].name == "reset"


def test_a_filtered_stream_stays_up_to_date(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """A stream of one kind stays up to date when records of other kinds are added."""
    path = make_job()
    with watching(tidegate.url + path, kind="emission") as events:
        events.take(1)
        report(http, path, a=100)
        http.post(f"{path}:declare", json={"substreams": ["b"]}).raise_for_status()
        report(http, path, b=110, a=120)
        assert emissions(events.until(100)) == [90, 100]
    history = http.get(f"{path}/history", params={"kind": "action"}).json()["records"]
    assert [record["action"] for record in history] == ["declare"]


def test_a_deletion_ends_the_stream(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """The stream ends with a `deleted` event. A reconnection is refused, so a browser stops reconnecting."""
    path = make_job()
    with watching(tidegate.url + path) as events:
        events.take(1)
        http.delete(path).raise_for_status()
        assert [event.name for event in events] == ["deleted"]
    problem(http.get(f"{path}/watermark:watch"), 410, "job_deleted")
    problem(http.get(f"/v1/jobs/{secrets.token_hex(4)}/watermark:watch"), 404, "job_not_found")


@pytest.mark.slow
def test_a_slow_client_delays_no_other_and_misses_nothing(tmp_path: Path) -> None:
    """The coordinator does not buffer events for a slow client, which gets them from the history at its own pace."""
    last = 3 * feed.RECORDS_KEPT
    assert last < RECORDS_KEPT
    config = CONFIG | {"policy": {"type": "limiting_lag", "lag_ms": 0}}
    path = "/v1/jobs/j"
    # The client reads nothing until all reports were sent, which can take longer than the usual timeout.
    with (
        CoordinatorProcess(tmp_path, request_timeout_s="900") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        http.put(path, json=config, headers={"If-None-Match": "*"}).raise_for_status()
        url = httpx.URL(process.url)
        with socket.create_connection((url.host, url.port or 80)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(f"GET {path}/watermark:watch HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode())
            assert slow.recv(10).startswith(b"HTTP/1.1")
            with watching(process.url + path) as events:
                events.take(1)
                for time in range(1, last + 1):
                    report(http, path, a=time)
                assert emissions(events.until(last)) == list(range(1, last + 1))
            slow.settimeout(60)
            text = b""
            while f'"watermark":{last},'.encode() not in text[-2000:]:
                text += slow.recv(1 << 16)
    assert [time for time in range(1, last + 1) if f'"watermark":{time},'.encode() not in text] == []
    assert b"event: reset" not in text


def test_streams_end_when_the_coordinator_stops(tmp_path: Path) -> None:
    """A coordinator that stops ends its streams at once, and logs no error."""
    process = CoordinatorProcess(tmp_path).start()
    with httpx.Client(base_url=process.url, timeout=60) as http:
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        with watching(f"{process.url}/v1/jobs/j") as events:
            events.take(1)
            process.stop()
            assert list(events) == []
    assert "ERROR" not in (tmp_path / "coordinator.log").read_text()


def test_waiting_clients_are_limited(tmp_path: Path) -> None:
    """A client over the limit gets 429 with Retry-After. Other clients are served."""
    with (
        CoordinatorProcess(tmp_path, max_waiting="2") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        url = f"{process.url}/v1/jobs/j"
        with watching(url) as events:
            events.take(1)
            waiting = pool.submit(_poll_until_accepted, f"{url}/watermark?at_least=40&timeout_s=60")
            _until_full(http)
            for call in ("watermark?at_least=50&timeout_s=1", "watermark:watch"):
                refused = http.get(f"/v1/jobs/j/{call}")
                assert problem(refused, 429, "too_many_waiting")["detail"].endswith("TIDEGATE_MAX_WAITING.")
                assert int(refused.headers["Retry-After"]) > 0
            report(http, "/v1/jobs/j", a=50)
            assert waiting.result().json()["watermark"] == 40
            assert http.get("/v1/jobs/j/watermark?at_least=50&timeout_s=0").json()["reached"] is False
            assert http.get("/v1/jobs/j/watermark?at_least=60&timeout_s=0.1").status_code == 200


def test_a_client_that_disconnects_no_longer_counts(tmp_path: Path) -> None:
    """A client that disconnects no longer counts as waiting."""
    with (
        CoordinatorProcess(tmp_path, max_waiting="3") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        for _ in range(3):
            for _ in range(3):
                with pytest.raises(httpx.ReadTimeout):
                    httpx.get(
                        f"{process.url}/v1/jobs/j/watermark?at_least=9&timeout_s=300",
                        timeout=httpx.Timeout(30, read=0.1),
                    )
            # A client that has gone looks like one that has stopped sending, until its host resets the connection.
            until(
                lambda: "\ntidegate_waiting_clients 0.0\n" in http.get("/metrics").text, "no client counts as waiting"
            )


def _poll_until_accepted(url: str) -> httpx.Response:
    """Long-poll, and repeat while the calls of `_until_full` use the last place."""
    while (answer := httpx.get(url, timeout=70)).status_code == 429:
        pass
    return answer


def _until_full(http: httpx.Client) -> None:
    for _ in range(600):
        if http.get("/v1/jobs/j/watermark?at_least=99&timeout_s=0.05").status_code == 429:
            return
    pytest.fail("no call returned 429 in 600 attempts: expected the coordinator to reach its limit of waiting clients")


def test_a_job_is_deleted_and_created_again(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """A delete ends a long poll with 410. A later stream shows the new incarnation."""
    path = make_job()
    with ThreadPoolExecutor(1) as pool, watching(tidegate.url + path) as events:
        events.take(1)
        waiting = pool.submit(httpx.get, f"{tidegate.url}{path}/watermark?at_least=9&timeout_s=60", timeout=70)
        http.delete(path).raise_for_status()
        problem(waiting.result(), 410, "job_deleted")
    make_job()
    report(http, path, a=100)
    with watching(tidegate.url + path) as events:
        assert events.take(1)[0].data["watermark"] == 90


def test_a_store_that_lost_its_data_causes_a_reset(tmp_path: Path, job_name: str) -> None:
    """After Redis has lost its data, the stream sends a reset event with the new state."""
    with (
        EmbeddedValkey(tmp_path / "valkey") as server,
        CoordinatorProcess(tmp_path / "data", redis_url=server.url) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
        Redis(unix_socket_path=server.socket) as redis,
    ):
        path = f"/v1/jobs/{job_name}"
        http.put(path, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        report(http, path, a=100)
        with watching(process.url + path) as events:
            [state] = events.take(1)
            redis.flushall()
            http.put(path, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
            [reset] = events.take(1)
            assert (state.data["watermark"], reset.name, reset.data["watermark"]) == (90, "reset", None)
            assert state.data["state_epoch"] != reset.data["state_epoch"]
            report(http, path, a=50)
            assert emissions(events.until(40)) == [40]
