"""The alert rules and the dashboard, checked with Prometheus and a coordinator's metrics."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.support.api import BASE, FRAMES, HOUR, batch, create, report
from tests.support.ports import free_port
from tests.support.programs import run, tool
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

ROOT = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = ROOT / "deploy" / "observe" / "prometheus", ROOT / "deploy" / "observe" / "grafana"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
NAME = re.compile(r"\b(?:tidegate|process)_[a-z_]*[a-z]\b")


def expressions() -> list[str]:
    """Return the expressions of the dashboard, with Grafana's variables replaced."""
    board = json.loads((GRAFANA / "tidegate.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 20
    return [expr.replace("$__rate_interval", "1m").replace("$job", ".*") for expr in asked]


def alerts(client: httpx.Client) -> list[dict[str, Any]]:
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Start a coordinator whose jobs have values for every metric."""
    directory = tmp_path_factory.mktemp("observed")
    with CoordinatorProcess(directory) as process, httpx.Client(base_url=process.url, timeout=30) as http:
        create(http, "flights", **FRAMES, expected_queries=["arrivals"])
        create(http, "direct")
        aim = {"type": "target_completeness", "target": 0.99, "cold_start_lag_ms": HOUR}
        create(http, "aimed", policy=aim)
        batch(http, "aimed", 0, {"ANC": BASE})
        for number in range(3):
            batch(http, "flights", number, {"ANC": BASE + number, "BOS": BASE + number})
            report(http, "direct", {"a": BASE + number, "b": BASE})
        report(http, "direct", {"b": 9_000_000_000_000})
        bad = {"substreams": ["a"], "max_event_times": [BASE], "watermark_token": "1.1.none"}
        http.post("/v1/jobs/direct:report", json=bad).raise_for_status()
        http.post("/v1/jobs/direct/holds", json={"at_most": BASE * 2, "reason": "r"}).raise_for_status()
        http.get("/v1/jobs/none")
        yield process


@pytest.fixture(scope="module")
def prometheus(scraped: CoordinatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Start Prometheus with the project's rules; yield a client after three scrapes of the coordinator."""
    directory = tmp_path_factory.mktemp("prometheus")
    config = f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{PROMETHEUS / "tidegate.rules.yml"}]
scrape_configs:
  - job_name: tidegate
    static_configs: [{{targets: ["{scraped.url.removeprefix("http://")}"]}}]
"""
    (directory / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    with open(directory / "log", "w") as log:
        process = subprocess.Popen(
            [
                tool("prometheus", "prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
            for _ in range(600):
                try:
                    found = client.get("/api/v1/query", params={"query": "count_over_time(tidegate_store_up[1h])"})
                    result = found.json()["data"]["result"]
                    if result and int(result[0]["value"][1]) >= 3:
                        break
                except (httpx.TransportError, KeyError, ValueError):
                    assert process.poll() is None, (directory / "log").read_text()
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait()


def test_the_rules_pass_their_unit_tests() -> None:
    """promtool runs the unit tests of the rules, and every alert has one in which it fires."""
    run(tool("promtool", "prometheus"), "check", "rules", str(PROMETHEUS / "tidegate.rules.yml"))
    assert "SUCCESS" in run(tool("promtool", "prometheus"), "test", "rules", "tidegate.rules.test.yml", cwd=PROMETHEUS)
    tried = (PROMETHEUS / "tidegate.rules.test.yml").read_text()
    scraped_text = (PROMETHEUS / "tidegate.rules.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", scraped_text):
        assert re.search(rf"alertname: {alert}\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels", tried), alert


def test_the_metrics_are_valid(scraped: CoordinatorProcess) -> None:
    """promtool accepts the names, units and help texts, and the format follows the Accept header."""
    text = httpx.get(f"{scraped.url}/metrics").text
    run(tool("promtool", "prometheus"), "check", "metrics", input="".join(line for line in tidegate_lines(text)))
    odd = {"Accept": "application/openmetrics-text;version=abc"}
    assert httpx.get(f"{scraped.url}/metrics", headers=odd).status_code == 200
    for accept in ("application/openmetrics-text; version=1.0.0", "text/plain; version=0.0.4"):
        answer = httpx.get(f"{scraped.url}/metrics", headers={"Accept": accept})
        assert answer.headers["content-type"].startswith(accept.partition(";")[0])
        assert answer.text.count("# EOF") == ("openmetrics" in accept)


def tidegate_lines(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        if "tidegate_" in line:
            yield line


def test_every_named_metric_exists(scraped: CoordinatorProcess) -> None:
    """The rules, their tests, the dashboard and the docs name only existing metrics. The docs name all of them."""
    text = httpx.get(f"{scraped.url}/metrics", params={"substreams": "*"}).text
    there = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    families = {name for name in re.findall(r"# TYPE (tidegate_\w+) ", text) if not name.endswith("_created")}
    there |= families
    pages = [*PROMETHEUS.iterdir(), GRAFANA / "tidegate.json", METRICS]
    for page in pages:
        named = set(NAME.findall(page.read_text())) - {"tidegate_spark", "other_build_info", "tidegate_session"}
        assert named, page
        assert named <= there, f"{page.name} names {sorted(named - there)}"
    missing = families - set(NAME.findall(METRICS.read_text()))
    assert not missing, f"{METRICS.name} does not name {sorted(missing)}"


def test_the_dashboard_and_the_rules_find_series(prometheus: httpx.Client) -> None:
    """Prometheus accepts each expression and finds series for it."""
    for expr in expressions():
        answer = prometheus.get("/api/v1/query", params={"query": expr})
        assert answer.status_code == 200, f"{expr}: {answer.text}"
        assert answer.json()["data"]["result"], f"{expr} finds nothing"
    rules = alerts(prometheus)
    assert len(rules) == 19
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    pending = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert "TidegateQueryMissing" in pending and "TidegateStoreDown" not in pending


def test_every_alert_is_explained() -> None:
    """The runbook of every alert is a section of alerts.md."""
    docs = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    rules = (PROMETHEUS / "tidegate.rules.yml").read_text()
    for alert, runbook in zip(
        re.findall(r"alert: (\w+)", rules), re.findall(r"runbook: docs/how-to/alerts.md#(\w+)", rules), strict=True
    ):
        assert runbook == alert.lower()
        assert f"## {alert}\n" in docs, f"alerts.md has no section {alert}"


def test_metrics_of_substreams_are_optional(scraped: CoordinatorProcess) -> None:
    """Metrics of substreams are returned only for the requested jobs, because a job can have many substreams."""
    with httpx.Client(base_url=scraped.url, timeout=30) as http:
        assert "tidegate_substream" not in http.get("/metrics").text
        scraped_text = http.get("/metrics", params={"substreams": "fli*"}).text
        late = '{class="late",job_name="flights",query="departures",substream="ANC"} 6.0'
        assert f"tidegate_substream_rows_total{late}" in scraped_text
        assert 'job_name="direct",query' not in scraped_text
        assert http.get("/metrics", params={"substreams": "a b"}).status_code == 422


def test_metrics_equal_the_status_of_the_job(scraped: CoordinatorProcess) -> None:
    with httpx.Client(base_url=scraped.url, timeout=30) as http:
        status = http.get("/v1/jobs/direct").json()
        scraped_text = http.get("/metrics").text.splitlines()
    counted = {
        "tidegate_job_emissions_total": status["emissions"],
        "tidegate_job_throttled_total": status["throttled"],
        "tidegate_job_future_rows_total": 1,
        "tidegate_job_tokens_ignored_total": 1,
        "tidegate_job_watermark_timestamp_seconds": status["watermark"] / 1000,
        "tidegate_job_holds": 1,
        "tidegate_reports_total": 5,
    }
    for name, value in counted.items():
        [line] = [line for line in scraped_text if line.startswith(f'{name}{{job_name="direct"}}')]
        assert float(line.rpartition(" ")[2]) == value, line


def test_a_key_gets_metrics_of_its_jobs_only(tmp_path: Path) -> None:
    """The key gets no metrics of other jobs, neither from the store nor from the replica's counters."""
    file = tmp_path / "keys.json"
    root, mine = keyring.create(file, "root", Role.ADMIN, ""), keyring.create(file, "mine", Role.READ, "mine")
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file)) as process:
        with httpx.Client(base_url=process.url, headers={"Authorization": f"Bearer {root}"}) as http:
            for job in ("mine", "yours"):
                create(http, job)
                report(http, job, {"a": BASE})
            assert "yours" in http.get("/metrics").text
        scraped_text = httpx.get(f"{process.url}/metrics", headers={"Authorization": f"Bearer {mine}"}).text
        assert 'tidegate_reports_total{job_name="mine"} 1.0' in scraped_text and "yours" not in scraped_text
        assert httpx.get(f"{process.url}/metrics").status_code == 401


def test_deleted_jobs_have_no_metrics(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as process, httpx.Client(base_url=process.url, timeout=30) as http:
        create(http, "gone")
        report(http, "gone", {"a": BASE})
        assert 'job_name="gone"' in http.get("/metrics").text
        http.delete("/v1/jobs/gone").raise_for_status()
        while 'job_name="gone"' in http.get("/metrics").text:
            time.sleep(0.1)  # the metrics of all jobs are cached for a second


def test_an_unreadable_job_hides_no_other(valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with (
        CoordinatorProcess(tmp_path, redis_url=valkey.url) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
        Redis(unix_socket_path=str(valkey.socket)) as redis,
    ):
        for job in ("of-two-sound", "of-two-broken"):
            create(http, job)
            report(http, job, {"a": BASE})
        redis.set("tidegate:{of-two-broken}:since", "no set")
        scraped_text = http.get("/metrics", params={"substreams": "of-two-*"}).text
        assert "tidegate_store_up 1.0" in scraped_text and "tidegate_unreadable_jobs 1.0" in scraped_text
        assert 'tidegate_substream_max_event_timestamp_seconds{job_name="of-two-sound"' in scraped_text
        page = http.get("/jobs/of-two-broken")
        assert page.status_code == 500 and "Redis does not answer" not in page.text
        for job in ("of-two-sound", "of-two-broken"):
            redis.delete(*redis.keys(f"tidegate:{{{job}}}*"))
            redis.srem("tidegate:jobs", job)
