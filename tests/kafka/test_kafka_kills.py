"""``kill -9`` of the driver of a query on Kafka at random times: each row has one batch and one pinned watermark."""

import os
import random
import secrets
import signal
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from examples.flights.spark import connector
from tests.support.kafka import Broker
from tests.support.kafka_queries import HOUR, START
from tests.support.pipeline import LAG, Settings
from tests.support.runs import Call, calls, run, started
from tests.support.waiting import until
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess

KILLS = int(os.environ.get("KILLS") or 4)
PARTITIONS, ROWS = 4, 150 * max(KILLS, 4)


def kill(settings: Settings, after_s: float) -> None:
    """Run the pipeline, and kill all of its processes some time after its first batch."""
    directory = Path(settings.directory)
    before = len(calls(directory))
    with started(settings) as process:
        until(lambda: len(calls(directory)) > before or process.poll() is not None, "the run has a batch", 300)
        time.sleep(after_s)
        assert process.poll() is None, (directory / "pipeline.log").read_text()[-4000:]
        os.killpg(process.pid, signal.SIGKILL)


def test_a_driver_killed_at_random_times_changes_no_results(
    broker: Broker, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    """Partition 0 is six hours behind the others, and in order, as all are. A tenth of its rows is late in itself."""
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}, {KILLS} kills")
    times = random.Random(seed)  # noqa: S311 - to repeat a run
    topic, sent = broker.topic(PARTITIONS), set[tuple[str, int]]()
    for partition in range(PARTITIONS):
        base = START - 6 * HOUR * (partition == 0)
        rows = [(f"{partition}-{number}", base + 1000 * number) for number in range(ROWS)]
        rows = [(k, t - 60_000 if number % 10 == 9 else t) for number, (k, t) in enumerate(rows)]
        broker.send(topic, partition, rows)
        sent |= set(rows)
    job = tidegate.job(config=limiting_lag(LAG))
    options = {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "80",
    }
    conf = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2, "spark.jars": connector()}
    connection = job.connection
    settings = Settings("local[2]", connection.url, connection.job, str(tmp_path), kafka=options, conf=conf)
    for _ in range(KILLS):
        kill(settings, times.uniform(0, 1.5))
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()[-4000:]

    given: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls(tmp_path):
        given[call.kind, call.batch].append(call)
    replayed = sum(len(attempts) - 1 for attempts in given.values())
    rows_of: dict[str, list[tuple[str, int]]] = {"on_time": [], "late": []}
    for (kind, _), attempts in given.items():
        first = attempts[0]
        assert all((call.pinned_watermark, call.rows) == (first.pinned_watermark, first.rows) for call in attempts)
        rows_of[kind] += [(k, t) for k, t, *_ in first.rows]
    assert sorted(rows_of["on_time"] + rows_of["late"]) == sorted(sent), "each row once"
    for (kind, _), attempts in given.items():
        pinned = attempts[0].pinned_watermark
        assert all((pinned is not None and row[1] < pinned) == (kind == "late") for row in attempts[0].rows)
    counts = job.status()["rows"]
    assert (counts["on_time"], counts["late"]) == (len(rows_of["on_time"]), len(rows_of["late"]))
    assert counts["late"] > 0
    assert job.status()["watermark"] == START - 6 * HOUR + 1000 * (ROWS - 2) - LAG // timedelta(milliseconds=1)
    (query,) = job.queries()
    assert (query["offsets"]["unread"], query["offsets"]["skipped"]) == (0, 0)
    print(f"{len({batch for _, batch in given})} batches, {replayed} calls repeated")
