"""The demo with Kafka: the records that it writes to a topic and reads from it, without a broker."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.flights import data
from examples.flights.kafka import flights, records
from examples.flights.spark import FlightsSource
from tests.support.flights import settings


def test_flights_read_from_a_topic_equal_those_written(spark: SparkSession, tmp_path: Path) -> None:
    """Each flight is in the partition of its destination, and each partition is in order."""
    landings = data.load(settings(tmp_path, 1))
    data.write_landings(landings, settings(tmp_path, 1), tmp_path)
    source = FlightsSource(spark, tmp_path, landings.destinations)
    written = records(spark.read.schema(source.stream().schema).parquet(str(tmp_path)), landings.destinations)
    assert written.schema.simpleString() == "struct<partition:int,value:string>"
    read = flights(written.withColumn("value", F.encode("value", "utf-8"))).toArrow().to_pandas()
    assert (read["dest"] == [landings.destinations[partition] for partition in read["partition"]]).all()
    for _, of_one in read.groupby("partition"):
        assert of_one["landed_at"].is_monotonic_increasing
    key = ["landed_at", "origin", "carrier", "flight"]
    expected = landings.flights.sort_values(key).reset_index(drop=True)
    found = read.drop(columns="partition").sort_values(key).reset_index(drop=True)
    for column in expected:
        assert found[column].tolist() == expected[column].tolist(), column


def test_an_invalid_record_has_no_event_time(spark: SparkSession) -> None:
    broken = spark.createDataFrame([(3, bytearray(b"{"))], "partition int, value binary")
    (row,) = flights(broken).collect()
    assert (row["partition"], row["departed_at"]) == (3, None)
