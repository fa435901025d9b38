"""A failover by three Sentinels, with and without confirmation by replicas."""

import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.api import CONFIG, read
from tests.support.load import SUBSTREAMS, advance, check_exact, check_monotone, load
from tests.support.sentinels import under_sentinels
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

JOBS = [f"job-{number}" for number in range(4)]
LONGEST_GAP_S = 90.0
"""Longest time without a confirmed batch. The Sentinels need about five seconds on an idle machine."""
READS = (
    "/v1/jobs",
    "/v1/jobs/tides",
    "/v1/jobs/tides/watermark",
    "/v1/jobs/tides/substreams",
    "/v1/jobs/tides/queries",
    "/v1/jobs/tides/history",
    "/v1/jobs/tides/late",
    "/v1/jobs/tides/completeness",
    "/v1/jobs/tides:explain",
    "/jobs/tides",
    "/",
)
"""The reads that show a watermark, without the metrics and the event stream."""
pytestmark = pytest.mark.slow


def test_a_failover_loses_no_watermark(tmp_path: Path) -> None:
    """Without WAIT, the new primary lacks confirmed batches. Tokens restore the watermarks that clients have seen."""
    with (
        under_sentinels(tmp_path, replicas=1) as servers,
        CoordinatorProcess(tmp_path / "one", redis_url=servers.url) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        with load(process.url, JOBS) as clients:
            advance(clients, 3)
            # The replica misses the batches from here on. A replica that is only paused would read them later.
            servers.replicas[0].send(signal.SIGSTOP)
            servers.primary.redis.client_kill_filter(_type="replica")
            advance(clients, 3)
            servers.primary.kill()
            servers.replicas[0].send(signal.SIGCONT)
            advance(clients, 5)
        check_monotone(clients)
        rows = [read(http, f"/v1/jobs/{client.job}")["rows"]["on_time"] for client in clients]
        lost = [client.committed - counted // len(SUBSTREAMS) for client, counted in zip(clients, rows, strict=True)]
        assert all(number > 0 for number in lost), "the replica had all batches, so this test proves nothing"
        assert max(client.longest_gap_s() for client in clients) < LONGEST_GAP_S
        for client in clients:
            assert read(http, f"/v1/jobs/{client.job}/watermark")["watermark"] == client.watermarks[-1]


def test_a_failover_loses_no_batch_that_replicas_confirmed(tmp_path: Path) -> None:
    """With WAIT, the new primary has each confirmed batch. The other replica confirms later batches."""
    with (
        under_sentinels(tmp_path, replicas=2) as servers,
        CoordinatorProcess(tmp_path / "one", redis_url=servers.url, min_replicas="1") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        with load(process.url, JOBS) as clients:
            advance(clients, 5)
            servers.primary.kill()
            advance(clients, 5)
        check_monotone(clients)
        check_exact(clients, partial(read, http))
        assert max(client.longest_gap_s() for client in clients) < LONGEST_GAP_S


def test_no_read_shows_a_watermark_that_a_failover_loses(tmp_path: Path) -> None:
    """A consumer that has acted on a watermark cannot undo it, whichever view has shown it."""

    def report(client: httpx.Client, max_event_time: int) -> httpx.Response:
        return client.post("/v1/jobs/tides:report", json={"substreams": ["a"], "max_event_times": [max_event_time]})

    with (
        under_sentinels(tmp_path, replicas=1) as servers,
        CoordinatorProcess(tmp_path / "one", redis_url=servers.url, min_replicas="1") as process,
        CoordinatorProcess(tmp_path / "two", redis_url=servers.url) as careless,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        http.put("/v1/jobs/tides", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        until(lambda: report(http, 1000).is_success, "the replica has confirmed a report")
        with http.stream("GET", "/v1/jobs/tides/watermark:watch") as events:
            lines = events.iter_lines()
            assert any('"watermark":990' in line for line in lines)
            # The replica misses the changes from here on. A replica that is only paused would read them later.
            servers.replicas[0].send(signal.SIGSTOP)
            servers.primary.redis.client_kill_filter(_type="replica")
            with httpx.Client(base_url=careless.url, timeout=60) as other:
                assert report(other, 2000).json()["watermark"] == 1990
            found = {path: http.get(path).status_code for path in READS}
            metrics = http.get("/metrics?substreams=tides").text
            servers.primary.kill()
            servers.replicas[0].send(signal.SIGCONT)
            until(lambda: servers.replicas[0].redis.info("replication")["role"] == "master", "a failover")
            servers.primary.start()
            until(lambda: http.get("/v1/jobs/tides/watermark").is_success, "the new primary has a replica")
            assert read(http, "/v1/jobs/tides/watermark")["watermark"] == 990
            until(lambda: report(http, 1500).is_success, "the replica has confirmed a report")
            followed = []
            for line in lines:
                followed.append(line)
                if '"watermark":1490' in line:
                    break
    assert found == dict.fromkeys(READS, 503)
    assert "tidegate_store_up 0" in metrics
    assert "tidegate_job_watermark" not in metrics
    assert "tidegate_substream_watermark_timestamp_seconds{" not in metrics
    assert not any('"watermark":1990' in line for line in followed)
