"""From Kafka over Spark, Iceberg and frames to a real Airflow: the files of the guide, flights of a day, and kills."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from pyiceberg.table import StaticTable

from examples.flights.data import load
from examples.flights.settings import Settings
from tests.airflow.loading import HOUR_MS, at
from tests.airflow.running import Airflow
from tests.support import kafka
from tests.support.guides import FILES
from tests.support.programs import absent
from tests.support.runs import environment
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess, ensure_java

VENV = Path(sys.prefix)
BEHIND_MS = {"EWR": 0, "JFK": 300_000, "LGA": 1_200_000}
"""The airport of each partition of the topic, and how long after their departures its flights come."""
LAG_MS = 1_800_000
"""The lag of the job in the guide."""


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


class Flight(NamedTuple):
    """A flight in the topic and in the table."""

    origin: str
    carrier: str
    flight: int
    at_ms: int

    @classmethod
    def of(cls, row: Any) -> "Flight":
        return cls(row.origin, row.carrier, row.flight, int(row.departed_at.timestamp() * 1000))

    @property
    def sent_ms(self) -> int:
        return self.at_ms + BEHIND_MS[self.origin]


class Flights:
    """The flights of 1 January 2013 in the topic, and what a run for an hour must read.

    The flights come in the order of their departures, those of JFK and LaGuardia some minutes after those of Newark.
    The first one is held back.

    Attributes:
        on_time: Each sent flight by the start of its hour, without the one that was held back.
        hours: The hours from the first to the last that must be complete, after the flights that were sent.
    """

    def __init__(self, broker: kafka.Broker) -> None:
        flights = load(Settings(datetime(2013, 1, 1, tzinfo=UTC), 1, 1, 30, 0, Path())).flights
        self.held, *self.left = sorted(map(Flight.of, flights.itertuples()), key=lambda flight: flight.sent_ms)
        self.broker = broker
        self.on_time: dict[int, set[Flight]] = {}
        broker.topic(len(BEHIND_MS), "flights")

    def _send(self, flight: Flight) -> None:
        departed = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(flight.at_ms // 1000))}Z"
        record = flight._asdict() | {"departed_at": departed}
        self.broker.send("flights", [*BEHIND_MS].index(flight.origin), [json.dumps(record).encode()])

    def send_until(self, clock: str) -> None:
        """Send the flights that come before a time of the day, in hours and minutes."""
        while self.left and self.left[0].sent_ms < at(f"2013-01-01T{clock}:00Z"):
            flight = self.left.pop(0)
            self._send(flight)
            self.on_time.setdefault(flight.at_ms - flight.at_ms % HOUR_MS, set()).add(flight)

    def send_held(self) -> None:
        """Send the flight that was held back, and is late now."""
        self._send(self.held)

    @property
    def hours(self) -> list[int]:
        sent = set().union(*self.on_time.values())
        watermark = min(max(each.at_ms for each in sent if each.origin == origin) for origin in BEHIND_MS) - LAG_MS
        return list(range(min(self.on_time), watermark - HOUR_MS + 1, HOUR_MS))


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


def written(version: int) -> list[Flight]:
    """Return the flights in a version of the table."""
    folder = Path("warehouse", "air", "flights", "metadata")
    metadata = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    rows = StaticTable.from_metadata(str(metadata)).scan(snapshot_id=version).to_pandas().itertuples()
    return [Flight.of(row) for row in rows]


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
    jars = [*(VENV / "kafka" / "connector-4.1").glob("*.jar"), *(VENV / "tables" / "spark-4.1").glob("iceberg*.jar")]
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

    def hour(clock: str) -> int:
        return at(f"2013-01-01T{clock}:00Z")

    with query() as driver, notifier() as process:
        flights.send_until("07:00")
        until(lambda: http.get("/v1/jobs/air/frames").status_code == 200, "the job exists", 180, 0.5)
        process.kill()
        flights.send_until("08:00")
        driver.kill()
        driver.wait()
    with query(), notifier():
        has_run(hour("05:00"))
        coordinator.stop(kill=True)
        flights.send_until("09:00")
        time.sleep(2)
        coordinator.start()
        has_run(hour("06:00"))
        airflow.kill("scheduler")
        flights.send_until("10:00")
        flights.send_held()
        has_run(hour("05:00"), 2)  # the API creates the run
        airflow.start("scheduler")
        for clock in range(10, 24):
            flights.send_until(f"{clock}:59")
            time.sleep(1)
        expected = [*((start, 1) for start in flights.hours), (hour("05:00"), 2)]
        has_run(flights.hours[-1])
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
        found[start, conf["generation"]] = {each for each in rows if start <= each.at_ms < start + HOUR_MS}
    assert sorted(found) == sorted(expected)
    for (start, generation), of_hour in found.items():
        late = {flights.held} if generation == 2 else set()
        assert of_hour == flights.on_time[start] | late, f"what the run for {start} reads"
