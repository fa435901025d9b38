"""The decision whether the batches of a query are persisted while they run.

A batch is used at least twice: by the fold, and by the user's function. If Spark can read the input again and gets the
same rows, reading it again is faster than persisting it. With ten million rows of Parquet, persisting doubles the time
of a batch. If a second read is expensive, or could return other rows, the batch must be persisted.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame

from tidegate_spark.versions import is_connect

COLUMNAR_FILES = {"parquet", "orc"}
"""Sources whose files are immutable while a batch runs, and whose columns are cheap to read."""

_STEPS = {"StreamingRelation", "Project", "Filter", "SubqueryAlias", "View", "Union", "EventTimeWatermark"}
"""Steps of a plan that return the same rows again if their expressions do."""

_CATALYST = "org.apache.spark.sql.catalyst."
_FOREIGN_CODE = re.compile(r"UDF|UDT|Invoke|Reflection|ApplyFunction|NewInstance|MapObjects|ObjectType")
"""Expressions that run code from outside Spark. Spark assumes that it is deterministic, and cannot know its cost."""

_CLASS = re.compile(r'"class"\s*:\s*"([^"]+)"')


def reason_to_persist(df: DataFrame) -> str | None:
    """Return why the batches of a streaming DataFrame must be persisted; None if Spark can read them again."""
    if is_connect(df.sparkSession):
        return "Spark Connect does not tell the client how the stream is computed"
    plan: Any = df._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    sources = [_source(leaves.apply(index)) for index in range(leaves.size())]
    if unknown := sorted(set(sources) - COLUMNAR_FILES):
        return f"reading the source {', '.join(unknown)} again may be expensive or return other rows"
    if not plan.deterministic():
        return "the stream has expressions that are not deterministic"
    # In a plan as JSON, each step and each expression has the member "class".
    for name in map(str, _CLASS.findall(plan.toJSON())):
        short = name.rpartition(".")[2]
        if _FOREIGN_CODE.search(short) or not (short in _STEPS or name.startswith(f"{_CATALYST}expressions.")):
            return f"the stream has the step {short}, which may be expensive or not deterministic"
    return None


def unpersist(df: DataFrame) -> None:
    """Unpersist a batch, even if the query is being stopped.

    Spark's ``stop()`` interrupts the query's thread in the JVM, in which the calls of this thread run. A call that
    waits, as this one does, would then raise an error, and the batch would not be committed. The calls of another
    thread run in another thread in the JVM.
    """
    with ThreadPoolExecutor(1) as other:
        other.submit(df.unpersist).result()


def _source(leaf: Any) -> str:
    """Return the short name of the source of a leaf of a plan."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelation":
        return str(leaf.dataSource().className()).lower()
    return str(leaf.sourceName()) if kind == "StreamingRelationV2" else kind
