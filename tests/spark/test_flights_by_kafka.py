"""The demo by way of Kafka: what is written to a topic, and read from it. (There is no broker here.)"""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.flights import data
from examples.flights.kafka import flights, records
from examples.flights.spark import FlightsSource
from tests.support.flights import settings


def test_flights_come_out_of_a_topic_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    """Each with the partition of its destination, where it is in its order."""
    landings = data.load(settings(tmp_path, 1))
    data.write_landings(landings, settings(tmp_path, 1), tmp_path)
    source = FlightsSource(spark, tmp_path, landings.destinations)
    written = records(spark.read.schema(source.stream().schema).parquet(str(tmp_path)), landings.destinations)
    assert written.schema.simpleString() == "struct<partition:int,value:string>"
    read = flights(written.withColumn("value", F.encode("value", "utf-8"))).toArrow().to_pandas()
    assert (read["dest"] == [landings.destinations[partition] for partition in read["partition"]]).all()
    for _, of_one in read.groupby("partition"):
        assert of_one["landed_at"].is_monotonic_increasing
    told = ["landed_at", "origin", "carrier", "flight"]
    expected = landings.flights.sort_values(told).reset_index(drop=True)
    found = read.drop(columns="partition").sort_values(told).reset_index(drop=True)
    for column in expected:
        assert found[column].tolist() == expected[column].tolist(), column


def test_a_value_that_is_no_flight_has_no_event_time(spark: SparkSession) -> None:
    broken = spark.createDataFrame([(3, bytearray(b"{"))], "partition int, value binary")
    (row,) = flights(broken).collect()
    assert (row["partition"], row["departed_at"]) == (3, None)
