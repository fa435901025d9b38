"""Stores for the state of windows: their interface, and the default."""

from typing import Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from tidegate_spark.columns import quoted
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.spark_session import ADAPTIVE, SHUFFLE_PARTITIONS, from_arrow, setting, to_arrow, version_of

FEW_ROWS = 5_000
FEW_BYTES = 16 * 2**20
"""Limits for a version that is one Arrow file. The driver holds such a version in memory."""

_SAME_IN_ARROW = {
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("string", "binary", "date", "timestamp", "interval day to second"),
}
"""Types whose values return from Arrow unchanged. PySpark adds a time zone to timestamps that have none."""


class StateStore(Protocol):
    """A store of numbered versions of a table, as files or in a table format such as Delta or Iceberg.

    One query at a time uses the store. The query reads a version only after it has written the whole version. After a
    failure, the query may write a version again, which replaces the rows. The store must be picklable, because the
    process that runs the query's batch function uses it.
    """

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version, and replace the version if it exists."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version, with their original schema."""

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""


class FileState:
    """A :class:`StateStore` of files in ``<checkpointLocation>/tidegate/state``.

    A small version is stored as the Arrow file ``<version>.arrow``, which Spark reads without a job. A larger version
    is stored as Parquet files in the directory ``<version>``.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._was_large = False
        """Whether the version last read has many rows. If so, the next version becomes Parquet files at once."""
        self._last: tuple[int, DataFrame] | None = None
        """The version that was last written as an Arrow file. The same batch and the next batch read this version."""

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version."""
        self._last = None
        few = None if self._was_large else _collected(rows)
        if few is not None:
            self._checkpoint.write_table(f"state/{version}", few)
            self._last = version, from_arrow(rows.sparkSession, few)
            self._checkpoint.delete_directory(f"state/{version}")  # of an earlier attempt
            return
        self._checkpoint.delete_table(f"state/{version}")
        rows.write.mode("overwrite").parquet(self._path(version))

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version."""
        if self._last is not None and self._last[0] == version:
            return self._last[1]
        few = self._checkpoint.read_table(f"state/{version}")
        self._was_large = few is None and self._checkpoint.count_rows(f"state/{version}") > FEW_ROWS // 2
        return spark.read.parquet(self._path(version)) if few is None else from_arrow(spark, few)

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""
        if self._last is not None and self._last[0] == version:
            self._last = None
        self._checkpoint.delete_table(f"state/{version}")
        self._checkpoint.delete_directory(f"state/{version}")

    def _path(self, version: int) -> str:
        return f"{self._checkpoint.location}/tidegate/state/{version}"


def _collected(rows: DataFrame) -> pa.Table | None:
    """Return rows as an Arrow table; None if they are too many, or Arrow cannot represent them."""
    spark = rows.sparkSession
    # On Spark 3.5, a table becomes a DataFrame by way of Python objects, which does not preserve maps.
    if version_of(spark) < (4, 0) or not _survives_arrow(rows.schema):
        return None
    # toArrow() refuses a null in a struct whose fields are not nullable.
    nullable = [_as_nullable(field) for field in rows.schema]
    with setting(spark, ADAPTIVE, "false"), setting(spark, SHUFFLE_PARTITIONS, 1):
        table = to_arrow(rows.select(*nullable).limit(FEW_ROWS + 1))
    return None if table.num_rows > FEW_ROWS or table.nbytes > FEW_BYTES else table


def _survives_arrow(kind: DataType) -> bool:
    """Return whether values that go through Arrow have the same type afterwards."""
    match kind:
        case StructType():
            return all(_survives_arrow(field.dataType) for field in kind)
        case ArrayType():
            return _survives_arrow(kind.elementType)
        case MapType():
            return _survives_arrow(kind.keyType) and _survives_arrow(kind.valueType)
        case _:
            return isinstance(kind, DecimalType) or kind.simpleString() in _SAME_IN_ARROW


def _as_nullable(field: StructField) -> str | Column:
    """Return a column whose values may be null at every level."""
    kind, name = _nullable(field.dataType), quoted(field.name)
    return name if kind == field.dataType else F.col(name).cast(kind).alias(field.name)


def _nullable(kind: DataType) -> DataType:
    """Return a type whose values may be null at every level."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind
