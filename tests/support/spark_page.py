"""The Python code of ``docs/spark.md``: ``python -m tests.support.spark_page`` runs it, with ``TIDEGATE_URL`` set.

The code needs its own process, because relative paths are those of the process in which Spark runs.
"""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidegate_spark.testing import FileBatches, ensure_java

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")


def flight(dest: str, departed_at: str | None) -> dict[str, Any]:
    return {"dest": dest, "carrier": "UA", "departed_at": departed_at, "passengers": 100}


def main() -> None:
    ensure_java()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    landings = FileBatches(Path("landings"), "")
    landings.add(flight("BOS", "2013-01-01T12:00:00Z"), flight("HNL", "2013-01-01T06:00:00Z"))
    page: dict[str, Any] = {"spark": spark}
    for block in (block for block in BLOCKS if not FILE.match(block)):
        if ".late_output(write_late)" in block:  # give the second run of "departures" some late rows
            landings.add(
                flight("HNL", "2013-01-01T05:00:00Z"), flight("HNL", "2013-01-01T06:30:00Z"), flight("BOS", None)
            )
        exec(compile(block, str(PAGE), "exec"), page)  # noqa: S102 - it is our own page
    late = spark.read.parquet("late")
    assert {(row.dest, row.batch) for row in late.collect()} == {("HNL", 1), ("BOS", 1)}
    assert spark.read.parquet("with_watermark").count() == 1
    hourly = spark.read.parquet("hourly").collect()
    assert {(row.dest, row.window.start.hour, row.flights, row.passengers) for row in hourly} >= {
        ("BOS", 12, 1, 100),
        ("HNL", 6, 2, 200),
    }, hourly
    by_spark = spark.read.parquet("by_spark").collect()
    assert ("HNL", 5, 1) in {(row.dest, row.window.start.hour, row.flights) for row in by_spark}, by_spark
    # The query "metered" reads the same flights, so it finds the same late flight.
    assert page["batches"] == [0, 1]
    assert page["Metrics"].seen[-1]["tidegate.watermark"] is not None
    assert page["never_stops"].connection.on_outage.continues
    spark.stop()


if __name__ == "__main__":
    main()
