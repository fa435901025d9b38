"""From Kafka over Spark, Iceberg and frames to a real Airflow: the files of the guide, with kills."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.table import StaticTable

from tests.airflow.loading import HOUR_MS, at
from tests.airflow.running import Airflow
from tests.support import kafka
from tests.support.guides import FILES
from tests.support.programs import absent
from tests.support.runs import environment
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess, ensure_java

VENV = Path(sys.prefix)
FIRST = at("2013-01-01T10:00:00Z")
ORIGINS = ("EWR", "JFK", "LGA")
"""The origin of each partition of the topic."""
MINUTE_MS = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[kafka.Broker]:
    if not (kafka.is_ready() and (VENV / "tables" / ".ready").exists() and (VENV / "spark-4.1" / ".ready").exists()):
        absent("Kafka, Iceberg or Spark 4.1 is missing: install Maven, and run make test-airflow.")
    ensure_java()
    started = kafka.Broker(tmp_path / "broker")
    try:
        started.start()
        yield started
    finally:
        started.stop()


class Flights:
    """Flights in the topic, and what a run for an hour must read of them."""

    def __init__(self, broker: kafka.Broker) -> None:
        self.broker, self.flight = broker, 0
        self.on_time: dict[int, set[int]] = {}
        broker.topic(len(ORIGINS), "flights")

    def send(self, at_ms: int, partition: int) -> int:
        """Send a flight, and return its number."""
        self.flight += 1
        departed = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at_ms // 1000))}Z"
        record = {"origin": ORIGINS[partition], "dest": "HNL", "flight": self.flight, "departed_at": departed}
        self.broker.send("flights", partition, [json.dumps(record).encode()])
        return self.flight

    def send_hour(self, hour: int) -> None:
        """Send flights of an hour to all partitions. The last partition is 20 minutes behind the others."""
        for minute in range(0, 60, 15):
            for partition, behind in enumerate((0, 5, 20)):
                at_ms = hour + (minute - behind) * MINUTE_MS
                self.on_time.setdefault(at_ms - at_ms % HOUR_MS, set()).add(self.send(at_ms, partition))


@contextmanager
def running(*command: str, log: Path, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until the block ends; nothing of it outlives the test."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=log.parent, env=environment(**more), stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def written(version: int) -> list[tuple[int, int]]:
    """Return the number and the time of each flight in a version of the table."""
    folder = Path("warehouse", "air", "flights", "metadata")
    metadata = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    rows = StaticTable.from_metadata(str(metadata)).scan(snapshot_id=version).to_arrow().to_pylist()
    return [(row["flight"], int(row["departed_at"].timestamp() * 1000)) for row in rows]


@pytest.mark.timeout(900)
def test_each_hour_has_one_run_and_each_correction_one_more(
    airflow: Airflow,
    coordinator: CoordinatorProcess,
    keys: tuple[Path, dict[str, str]],
    http: httpx.Client,
    broker: kafka.Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flights = Flights(broker)
    jars = [*(VENV / "kafka" / "connector-4.1").glob("*.jar"), *(VENV / "tables").glob("iceberg*.jar")]
    program = FILES["flights_to_iceberg.py"].replace("localhost:9092", broker.address)
    program = program.replace('"spark.jars.packages", packages', f'"spark.jars", "{",".join(map(str, jars))}"')
    (tmp_path / "flights_to_iceberg.py").write_text(program)
    (airflow.dags / "air_hours.py").write_text(FILES["air_hours.py"])
    airflow.unpause("air_hours")

    def query() -> Any:
        python = str(VENV / "spark-4.1" / "bin" / "python")
        more = {"TIDEGATE_URL": coordinator.url, "TIDEGATE_TOKEN": keys[1]["admin"], "SPARK_LOCAL_IP": "127.0.0.1"}
        return running(python, "flights_to_iceberg.py", log=tmp_path / "query.log", **more)

    def notifier() -> Any:
        login = {"AIRFLOW_USERNAME": "joe", "AIRFLOW_PASSWORD": "joe"}
        to = ("--airflow", airflow.url, "--as", "air_hours", "--dag", "air_hours", "--lease", "3s")
        command = (sys.executable, "-m", "tidegate", "notify", "airflow", "air", *to)
        more = {"TIDEGATE_URL": coordinator.url, "TIDEGATE_TOKEN": keys[1]["report"], **login}
        return running(*command, log=tmp_path / "notifier.log", **more)

    def has_run(hour: int, generation: int = 1) -> None:
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(hour // 1000))
        run = f"air__{start}__g{generation}"
        until(lambda: run in airflow.runs("air_hours"), f"{run} is started", 180, 0.5)

    hours = [FIRST + number * HOUR_MS for number in range(6)]
    with query() as driver, notifier() as process:
        flights.send_hour(hours[0])
        flights.send_hour(hours[1])
        until(lambda: http.get("/v1/jobs/air/frames").status_code == 200, "the job exists", 180, 0.5)
        process.kill()
        flights.send_hour(hours[2])  # completes the first hour
        driver.kill()
        driver.wait()
    with query(), notifier():
        has_run(hours[0])
        coordinator.stop(kill=True)
        flights.send_hour(hours[3])
        time.sleep(2)
        coordinator.start()
        has_run(hours[1])
        airflow.kill("scheduler")
        flights.send_hour(hours[4])
        late = flights.send(hours[0] + MINUTE_MS, 0)
        has_run(hours[0], 2)  # the API creates the run
        airflow.start("scheduler")
        flights.send_hour(hours[5])
        has_run(hours[3])
        expected = [(hour, 1) for hour in hours[:4]] + [(hours[0], 2)]
        runs = airflow.runs("air_hours")
        for run in runs:
            airflow.ended("air_hours", run, timeout_s=300)
        time.sleep(3)  # a second run would be started now
        assert airflow.runs("air_hours").keys() == runs.keys()
    monkeypatch.chdir(tmp_path)  # the paths in the table are relative
    found = {}
    for run in runs:
        conf = runs[run]["conf"]
        sql = str(airflow.result("air_hours", run, "load"))
        [version] = re.findall(r"VERSION AS OF (\d+)", sql)
        rows = written(int(version))
        assert len(rows) == len(set(rows)), "a flight is in the table twice"
        start = conf["frame_start_ms"]
        found[start, conf["generation"]] = {flight for flight, at_ms in rows if start <= at_ms < start + HOUR_MS}
    before = {start for start, _ in found if start < hours[0]}  # the last partition has flights of the hour before
    assert sorted(found) == sorted([*expected, *((start, 1) for start in before)])
    for (start, generation), numbers in found.items():
        missing = flights.on_time[start] - numbers
        assert not missing, f"the run for {start} reads a version without {missing}"
        if generation == 2:
            assert late in numbers
