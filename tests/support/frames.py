"""Streaming DataFrames by their schema alone, for arguments that are refused before anything runs."""

from dataclasses import dataclass
from typing import Any, cast

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class Session:
    """What argument checks read of a session."""

    version: str = pyspark.__version__


@dataclass(frozen=True)
class Schema:
    """What argument checks read of a DataFrame."""

    schema: StructType
    isStreaming: bool = True  # noqa: N815 - Spark's name
    sparkSession: Session = Session()  # noqa: N815 - Spark's name

    @property
    def columns(self) -> list[str]:
        return self.schema.names


def stream_of_types(
    types: dict[str, DataType], metadata: dict[str, dict[str, Any]] | None = None, *, streaming: bool = True
) -> DataFrame:
    """Return a DataFrame that has columns of these types, and no rows."""
    fields = [StructField(name, kind, True, (metadata or {}).get(name)) for name, kind in types.items()]
    return cast(DataFrame, Schema(StructType(fields), streaming))
