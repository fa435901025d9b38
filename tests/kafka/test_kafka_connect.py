"""A query on Kafka under Spark Connect, whose hook cannot read the offsets: the heartbeats tell them."""

from pathlib import Path

import pyspark
import pytest

from examples.flights.spark import connector
from tests.support.clusters import connect_server
from tests.support.kafka import Broker
from tests.support.pipeline import QUERY, Settings
from tests.support.runs import calls, run
from tidegate_spark.testing import CoordinatorProcess


@pytest.mark.skipif(pyspark.__version__.startswith("3."), reason="needs Spark 4.0")
def test_the_offsets_of_a_query_under_connect_are_known(
    tidegate: CoordinatorProcess, broker: Broker, tmp_path: Path
) -> None:
    job, topic = tidegate.job(), broker.topic(2)
    broker.send(topic, 0, [("a", 100_000 + each) for each in range(30)])
    broker.send(topic, 1, [("b", 50_000)])
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    with connect_server(tmp_path, {"spark.ui.enabled": False, "spark.jars": connector()}) as session:
        settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), until_idle=True, kafka=options)
        assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    found = job.queries()[0]["offsets"]
    assert (found["partitions"], found["unread"], found["batch_id"]) == (2, 0, 0)
    table = {row["partition"]: row["committed"] for row in job.offsets(QUERY)["partitions"]}
    assert table == {f"{topic}/0": 30, f"{topic}/1": 1}
    assert sum(len(call.rows) for call in calls(tmp_path)) == 31
    assert job.status()["watermark"] == 90_029, "the watermark passes the partition that is proven to be silent"
