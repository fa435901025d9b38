"""A broker, and a Spark session with the connector."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from examples.flights.spark import connector
from tests.support.kafka import Broker, is_ready, without_maven
from tests.support.sessions import local_session
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
    with local_session(jars=connector()) as session:
        yield session
