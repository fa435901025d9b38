"""Streaming DataFrames that have only a schema, for arguments that are refused before anything runs."""

from dataclasses import dataclass
from typing import Any, cast

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class Session:
    """The attributes of a session that argument checks read."""

    version: str = pyspark.__version__


@dataclass(frozen=True)
class Schema:
    """The attributes of a DataFrame that argument checks read."""

    schema: StructType
    isStreaming: bool = True  # noqa: N815 - Spark's name
    sparkSession: Session = Session()  # noqa: N815 - Spark's name

    @property
    def columns(self) -> list[str]:
        return self.schema.names


def stream_of_types(
    types: dict[str, DataType], metadata: dict[str, dict[str, Any]] | None = None, *, streaming: bool = True
) -> DataFrame:
    """Return a DataFrame with columns of these types and without rows."""
    fields = [StructField(name, kind, True, (metadata or {}).get(name)) for name, kind in types.items()]
    return cast(DataFrame, Schema(StructType(fields), streaming))
