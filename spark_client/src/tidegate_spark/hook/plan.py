"""Spark's plan of a stream: whether batches must be persisted, and whether partitions are those of the source.

A batch is used at least twice: by the fold, and by the user's function. If Spark can read the input again and gets the
same rows, reading it again is faster than persisting it. With ten million rows of Parquet, persisting doubles the time
of a batch. If a second read is expensive, or could return other rows, the batch must be persisted.
"""

import re
from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame

from tidegate_spark.columns import Columns
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.logs import QueryLog
from tidegate_spark.sources.plan import FILES, TABLES, source_name
from tidegate_spark.spark_session import IGNORE_MISSING_FILES, is_connect
from tidegate_spark.substreams import SOURCE_PARTITION

_COLUMNAR = {"parquet", "orc"} | TABLES
"""Sources whose files are immutable while a batch runs, and whose columns are cheap to read."""

_STEPS = {
    "StreamingRelation",
    "StreamingRelationV2",
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "Union",
    "EventTimeWatermark",
}
"""Steps of a plan that return the same rows again if their expressions do."""

_CATALYST = "org.apache.spark.sql.catalyst."
_FOREIGN_CODE = re.compile(r"UDF|UDT|Invoke|Reflection|ApplyFunction|NewInstance|MapObjects|ObjectType")
"""Expressions that run code from outside Spark. Spark assumes that it is deterministic, and cannot know its cost."""

_CLASS = re.compile(r'"class"\s*:\s*"([^"]+)"')

_REPARTITIONING = frozenset(
    {
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "Aggregate",
        "Distinct",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Join",
        "Window",
        "Sort",
        "GlobalLimit",
        "Intersect",
        "Except",
        "FlatMapGroupsInPandas",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)
"""Steps of a plan after which a row's partition may not be that of the source."""


def reason_to_persist(df: DataFrame) -> str | None:
    """Return why the batches of a streaming DataFrame must be persisted; None if Spark can read them again."""
    if is_connect(df.sparkSession):
        return "Spark Connect does not tell the client how the stream is computed"
    plan: Any = df._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    sources = [source_name(leaves.apply(index)) for index in range(leaves.size())]
    if unknown := sorted(set(sources) - _COLUMNAR):
        return f"reading the source {', '.join(unknown)} again may be expensive or return other rows"
    if df.sparkSession.conf.get(IGNORE_MISSING_FILES) == "true":
        return f"with {IGNORE_MISSING_FILES}, a second read may not return the rows of files that were deleted"
    if not plan.deterministic():
        return "the stream has expressions that are not deterministic"
    # In a plan as JSON, each step and each expression has the member "class".
    for name in map(str, _CLASS.findall(plan.toJSON())):
        short = name.rpartition(".")[2]
        if _FOREIGN_CODE.search(short) or not (short in _STEPS or name.startswith(f"{_CATALYST}expressions.")):
            return f"the stream has the step {short}, which may be expensive or not deterministic"
    return None


def check_partitions(log: QueryLog, columns: Columns, df: DataFrame) -> None:
    """Warn if the substreams are to be the partitions of the source, and the partitions of the stream are not.

    Raises:
        InvalidUsage: If the source has no partitions.
    """
    if columns.substream is SOURCE_PARTITION and not is_connect(df.sparkSession):
        leaves = cast(Any, df)._jdf.queryExecution().analyzed().collectLeaves()
        for table in sorted(TABLES.intersection(source_name(leaves.apply(index)) for index in range(leaves.size()))):
            raise InvalidUsage(
                f"substream=SOURCE_PARTITION needs a source with partitions, and those of the source {table} are the "
                "tasks of each batch. Pass the name of a column that identifies a substream, or None for one substream."
            )
    reason = reason_against_partitions(columns, df)
    if reason is not None:
        log.warning(
            "substream=SOURCE_PARTITION: %s. A substream then has rows of several partitions, and rows may be late. "
            "Name columns that identify a substream, such as ['topic', 'partition'] of Kafka, or remove the step.",
            reason,
        )


def reason_against_partitions(columns: Columns, df: DataFrame) -> str | None:
    """Return why the partitions of a stream are not those of its source; None unless they are the substreams.

    Under Spark Connect, the client cannot see the steps of a stream.
    """
    if columns.substream is not SOURCE_PARTITION or is_connect(df.sparkSession):
        return None
    for node in _nodes(df._jdf.queryExecution().analyzed()):
        name = str(node.nodeName())
        if name in _REPARTITIONING:
            return f"the stream has the step {name}, after which the partitions may not be those of the source"
        if name == "StreamingRelation" and (source := str(node.dataSource().className()).lower()) in FILES:
            return f"the partitions of the source {source} depend on the sizes of the files in each batch"
    return None


def keeps_partitions(df: DataFrame) -> bool:
    """Return whether the partitions of a stream are those of its sources."""
    return all(str(node.nodeName()) not in _REPARTITIONING for node in _nodes(df._jdf.queryExecution().analyzed()))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
