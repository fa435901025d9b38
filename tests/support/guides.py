"""The Python code of the site: ``python -m tests.support.guides`` runs it, with ``TIDEGATE_URL`` set.

The code of all pages runs in the order of the menu, except blocks with a title, which are files. It needs its own
process, because relative paths are those of the process in which Spark runs.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from tidegate_spark.testing import FileBatches, ensure_java

ROOT = Path(__file__).parents[2]


def _pages(menu: Any) -> Iterator[str]:
    """Yield the names of the pages in the menu."""
    for entry in menu if isinstance(menu, list) else [menu]:
        if isinstance(entry, dict):
            yield from _pages(list(entry.values()))
        elif isinstance(entry, list):
            yield from _pages(entry)
        else:
            yield entry


PAGES = {
    name: (ROOT / "docs" / name).read_text()
    for name in _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
}
"""The texts of all pages by name, in the order of the menu."""
BLOCKS = [
    (name, block)
    for name, text in PAGES.items()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
"""The blocks to run, with the names of their pages."""
FILES = {
    name: block
    for text in PAGES.values()
    for name, block in re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
}
"""The files by name."""


def flight(dest: str, departed_at: str | None) -> dict[str, Any]:
    return {"dest": dest, "carrier": "UA", "departed_at": departed_at, "passengers": 100}


def main() -> None:
    ensure_java()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    landings = FileBatches(Path("landings"), "")
    landings.add(flight("BOS", "2013-01-01T12:00:00Z"), flight("HNL", "2013-01-01T06:00:00Z"))
    page: dict[str, Any] = {"spark": spark}
    for name, block in BLOCKS:
        if ".late_output(write_late)" in block:  # give the second run of "departures" some late rows
            landings.add(
                flight("HNL", "2013-01-01T05:00:00Z"), flight("HNL", "2013-01-01T06:30:00Z"), flight("BOS", None)
            )
        exec(compile(block, name, "exec"), page)  # noqa: S102 - it is our own page
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
    migrated = [
        {(row.dest, row.window.start.hour, row.flights) for row in spark.read.parquet(path).collect()}
        for path in ("by_hour", "by_hour_2")
    ]
    # The cut-over removes no window from the old output, and the new query waits for Honolulu.
    assert migrated == [{("HNL", 5, 1), ("HNL", 6, 2)}, {("HNL", 5, 1)}], migrated
    # The query "metered" reads the same flights, so it finds the same late flight.
    assert page["batches"] == [0, 1]
    assert page["Metrics"].seen[-1]["tidegate.watermark"] is not None
    assert page["never_stops"].connection.on_outage.continues
    spark.stop()


if __name__ == "__main__":
    main()
