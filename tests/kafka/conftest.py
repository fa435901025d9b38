"""A broker, and a Spark session with the connector."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from examples.flights.spark import connector
from tests.conftest import LOCAL_CHECKPOINTS
from tests.support.kafka import Broker, is_ready, without_maven
from tidegate_spark.testing import ensure_java


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if not is_ready():
        pytest.skip(without_maven())
    ensure_java()
    started = Broker(tmp_path_factory.mktemp("broker"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def spark(broker: Broker) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.appName("kafka")
        .master("local[2]")
        .config("spark.jars", connector())
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.checkpointFileManagerClass", LOCAL_CHECKPOINTS)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
