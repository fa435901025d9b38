"""docker-compose.yml: its contents, and its services, started as processes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from examples.flights import data
from tests.support.compose import ROOT, Composed, Service, described
from tests.support.flights import EXACT, check_accounts, check_windows, settings
from tests.support.programs import tool
from tests.support.waiting import until
from tidegate_spark.testing import ensure_java

ONCE = {"secrets", "key", "keys"}
"""Services that end by themselves."""
OURS = {"tidegate:local", "tidegate-flights:local"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = described({})["services"]
    return found


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    tool("haproxy", "haproxy")
    tool("wget", "wget")
    tool("prometheus", "prometheus")
    ensure_java()
    made = Composed(tmp_path, **EXACT)
    try:
        yield made
    except BaseException:
        print(made.logs())
        raise
    finally:
        made.end()


def test_ports_are_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for definition in services.values() for port in definition.get("ports", [])]
    assert len(published) >= 4
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert not [
        name
        for name, definition in services.items()
        if definition.get("network_mode") == "host" or "expose" in definition
    ]


def test_every_service_has_limits_and_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    for name, definition in services.items():
        assert "no-new-privileges:true" in definition["security_opt"], name
        assert not definition.get("privileged"), name
        if name not in ONCE:
            assert definition["mem_limit"], name
            assert definition["cpus"], name
        if name not in ONCE | {"flights", "flights-kafka", "landings"}:
            assert definition["healthcheck"]["test"], name


def test_no_service_has_privileges(services: dict[str, dict[str, Any]]) -> None:
    """Each service has its own user, no capabilities, and a read-only file system. Kafka's scripts write to theirs."""
    for name, definition in services.items():
        assert definition["cap_drop"] == ["ALL"], name
        assert "cap_add" not in definition, name
        assert definition["read_only"] is (name != "kafka"), name
        if definition["image"] in OURS:
            assert "user" not in definition, f"{name} has the user of its image"
        elif name != "kafka":
            assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", definition["user"]), name


def test_third_party_images_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    images = {definition["image"] for definition in services.values()} - OURS
    assert len(images) == 5
    for image in images:
        assert re.fullmatch(r"docker\.io/[a-z/-]+:v?\d+\.\d+\.\d+[a-z-]*", image), image


def test_secrets_are_files_of_their_readers(services: dict[str, dict[str, Any]]) -> None:
    """Secrets are files in volumes, which only their readers mount, read-only. No environment variable has one."""
    for name, definition in services.items():
        for variable, value in definition.get("environment", {}).items():
            assert not re.search(r"PASSWORD$|SECRET$|TOKEN$|KEY$", variable), (name, variable)
            assert not re.search(r"://[^/]*@", str(value)), (name, variable)
        mounted = [volume.split(":") for volume in definition.get("volumes", []) if "-secrets:" in volume]
        if name not in ("secrets", "keys"):
            assert len(mounted) <= 1, name
            assert all(options == ["ro"] for _, _, *options in mounted), name
    holders = [name for name, definition in services.items() if "people-secrets" in str(definition.get("volumes"))]
    assert holders == ["secrets", "key"], "only these services may mount the admin key"


def test_the_flights_run_while_a_coordinator_is_killed(composed: Composed) -> None:
    """Every window is exact on a standalone cluster with two workers, although a coordinator is killed."""
    composed.up("flights")
    flights, proxy = composed["flights"], composed["proxy"]
    first, second = composed["coordinator-1"], composed["coordinator-2"]
    key = (composed.volume("observe-secrets") / "key").read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    out = composed.volume("flights-data") / "demo"
    assert flights.process is not None

    def reports(coordinator: Service) -> float:
        answer = httpx.get(f"http://{coordinator.address}:8000/metrics", headers=headers, timeout=30)
        metrics = answer.raise_for_status().text
        counted = [line for line in metrics.splitlines() if line.startswith("tidegate_reports_total{")]
        return sum(float(line.split()[-1]) for line in counted)

    def batches() -> int:
        assert flights.process is not None
        assert flights.process.poll() is None, composed.logs()
        return len(list((out / "state" / "batches").glob("batch-*.json")))

    until(
        lambda: batches() >= 8 and reports(first) > 0 < reports(second), "both coordinators have received reports", 300
    )
    workers = httpx.get(f"http://{composed['spark-master'].address}:8080/json/").json()["workers"]
    assert [(worker["state"], worker["coresused"]) for worker in workers] == [("ALIVE", 1)] * 2
    first.kill()
    assert batches() < 20, "the coordinator must be killed while batches remain"
    assert flights.process.wait(500) == 0, composed.logs()

    expected = data.load(settings(out, 1)).flights
    summary = check_accounts(out, expected)
    assert (summary["late"], summary["null_event_time"]) == (0, 0)
    check_windows(out, expected)
    # The remaining coordinator serves all calls through the proxy.
    assert proxy.is_healthy()
    jobs = f"http://{proxy.address}:8000/v1/jobs"
    (job,) = httpx.get(jobs, headers=headers, timeout=30).raise_for_status().json()["jobs"]
    assert (job["job"].startswith("flights-"), job["health"]) == (True, "complete")
    assert httpx.get(jobs, timeout=30).status_code == 401
    check_user(composed)
    ended = composed.down()
    assert {name: code for name, code in ended.items() if name in ("coordinator-2", "valkey", "proxy", "flights")} == {
        "coordinator-2": 0,
        "valkey": 0,
        "proxy": 0,
        "flights": 0,
    }


def check_user(composed: Composed) -> None:
    """Check that no command of a coordinator was denied, and that its user may run no other commands."""
    url = composed["coordinator-1"].here((composed.volume("coordinator-secrets") / "tidegate_redis_url").read_text())
    with Redis.from_url(url, driver_info=None) as valkey:  # the user may not run CLIENT SETINFO
        stats = valkey.info("stats")
        denied = {name: stats[f"acl_access_denied_{name}"] for name in ("auth", "cmd", "key", "channel")}
        assert denied == {"auth": 0, "cmd": 0, "key": 0, "channel": 0}
        for forbidden in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["ACL", "LIST"], ["SET", "other", "1"]):
            with pytest.raises(NoPermissionError):
                valkey.execute_command(*forbidden)


def test_secrets_and_state_survive_a_restart(composed: Composed) -> None:
    composed.up("proxy")
    composed["proxy"].wait("service_healthy")
    url = f"http://{composed['proxy'].address}:8000"
    key = composed["key"].run().strip()
    headers = {"Authorization": f"Bearer {key}"}
    rules = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
    httpx.put(f"{url}/v1/jobs/j", json=rules, headers=headers | {"If-None-Match": "*"}).raise_for_status()
    report = {"substreams": ["a"], "max_event_times": [100]}
    assert httpx.post(f"{url}/v1/jobs/j:report", json=report, headers=headers).json()["watermark"] == 90
    paths: dict[str, Any] = json.loads((ROOT / "openapi" / "tidegate.v1.json").read_text())["paths"]
    asked = [path for path, calls in paths.items() if "get" in calls and not path.endswith((":watch", "/live"))]
    for path in (*asked, "/", "/jobs/j"):
        answer = httpx.get(f"{url}{path.format(job='j', query='q', batch=0)}", headers=headers)
        assert answer.status_code in (200, 303, 404), answer.text
    metrics = httpx.get(f"{url}/metrics?substreams=*", headers=headers).raise_for_status().text
    assert "tidegate_store_up 1.0" in metrics
    assert 'tidegate_substream_watermark_timestamp_seconds{job_name="j"' in metrics
    check_user(composed)
    assert composed.down() == dict.fromkeys(["secrets", "valkey", "coordinator-1", "coordinator-2", "proxy"], 0)

    composed.up("proxy")
    composed["proxy"].wait("service_healthy")
    assert composed["secrets"].log.read_text().splitlines()[-1] == "The secrets exist already."
    assert httpx.get(f"{url}/v1/jobs/j/watermark", headers=headers).json()["watermark"] == 90
    another = {"Authorization": f"Bearer {composed['keys'].run('create', 'reader', '--role', 'read').strip()}"}
    until(lambda: httpx.get(f"{url}/v1/jobs/j", headers=another).is_success, "both coordinators have loaded the key")


def test_an_interrupted_first_start_is_repeated(composed: Composed) -> None:
    """If the secrets are incomplete, the next start creates them again."""
    composed.up("secrets")
    composed["secrets"].wait("service_completed_successfully")
    kept = composed.volume("coordinator-secrets")
    (kept / "keys.json").rename(kept / ".keys.json")
    composed.up("coordinator-1")
    composed["coordinator-1"].wait("service_healthy")
    assert "Created the secrets." in composed["secrets"].log.read_text()


def test_prometheus_scrapes_both_coordinators_and_has_the_rules(composed: Composed) -> None:
    composed.up("prometheus")
    prometheus = composed["prometheus"]
    prometheus.wait("service_healthy")
    api = f"http://{prometheus.address}:9090/api/v1"

    def up() -> list[str]:
        result = httpx.get(f"{api}/query", params={"query": "up"}).raise_for_status().json()["data"]["result"]
        return [series["value"][1] for series in result]

    until(lambda: up() == ["1", "1"], "both coordinators are up")
    groups = httpx.get(f"{api}/rules").json()["data"]["groups"]
    rules = (ROOT / "deploy" / "observe" / "prometheus" / "tidegate.rules.yml").read_text()
    assert sum(len(group["rules"]) for group in groups) == rules.count("alert:") > 0


def test_each_image_is_built_once(services: dict[str, dict[str, Any]]) -> None:
    """Only one service builds each image, because some engines refuse an image that several services build."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    built = [definition["image"] for definition in services.values() if "build" in definition]
    assert sorted(built) == sorted(OURS)
    for name, definition in services.items():
        if "build" in definition:
            assert definition["build"]["target"] in stages, name
        if definition["image"] in OURS:
            assert definition["pull_policy"] == "never", f"{name} must not be pulled from a registry"
