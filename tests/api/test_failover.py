"""A failover by three Sentinels under load, with and without confirmation by replicas."""

import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.api import read
from tests.support.load import SUBSTREAMS, advance, check_exact, check_monotone, load
from tests.support.sentinels import under_sentinels
from tidegate_spark.testing import CoordinatorProcess

JOBS = [f"job-{number}" for number in range(4)]
LONGEST_GAP_S = 90.0
"""Longest time without a confirmed batch. The Sentinels need about five seconds on an idle machine."""
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
