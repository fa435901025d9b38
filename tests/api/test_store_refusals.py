"""A Redis that refuses writes: calls, probes and metrics name the reason until Redis accepts writes again."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tests.support.api import CONFIG, problem
from tests.support.waiting import until
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark import CoordinatorUnavailable, connect
from tidegate_spark.testing import CoordinatorProcess

Do = Callable[[Redis], object]
REPORT = {"substreams": ["a"], "max_event_times": [100]}
REFUSING: dict[str, tuple[str, Do, Do]] = {
    "full": (
        "store_full",
        lambda redis: redis.config_set("maxmemory", 1),
        lambda redis: redis.config_set("maxmemory", 0),
    ),
    "replica": (
        "store_read_only",
        lambda redis: redis.replicaof("127.0.0.1", 1),
        lambda redis: redis.replicaof("NO", "ONE"),
    ),
    "no replicas": (
        "store_read_only",
        lambda redis: redis.config_set("min-replicas-to-write", 1),
        lambda redis: redis.config_set("min-replicas-to-write", 0),
    ),
}


def store_up(http: httpx.Client) -> float:
    text = http.get("/metrics").raise_for_status().text
    [value] = re.findall(r"^tidegate_store_up (\S+)$", text, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize(("code", "begin", "end"), list(REFUSING.values()), ids=list(REFUSING))
def test_refused_writes_are_reported(tmp_path: Path, code: str, begin: Do, end: Do) -> None:
    with (
        EmbeddedValkey(tmp_path / "redis") as server,
        Redis(unix_socket_path=server.socket) as redis,
        CoordinatorProcess(tmp_path / "coordinator", redis_url=server.url) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        http.post("/v1/jobs/j:report", json=REPORT).raise_for_status()
        assert store_up(http) == 1
        begin(redis)
        refused = http.post("/v1/jobs/j:report", json=REPORT | {"max_event_times": [200]})
        assert "accepts no writes" in problem(refused, 503, code)["detail"]
        assert refused.headers["Retry-After"]
        problem(http.get("/readyz"), 503, code)
        assert http.get("/livez").status_code == 200
        for read in ("", "/substreams", "/queries", "/completeness", "/late", "/history"):
            assert http.get(f"/v1/jobs/j{read}").status_code == 200, read
        assert store_up(http) == 0
        with pytest.raises(CoordinatorUnavailable, match=f"cannot serve the call now .*{code}"):
            connect(process.url, job="j", on_outage=timedelta(seconds=0.2)).complete()
        end(redis)
        until(lambda: http.get("/readyz").status_code == 200, "Redis accepts writes")
        assert http.post("/v1/jobs/j:report", json=REPORT | {"max_event_times": [200]}).json()["watermark"] == 190
        assert store_up(http) == 1
    assert "Traceback" not in (tmp_path / "coordinator" / "coordinator.log").read_text()
