"""Windows of event time that the job's watermark closes. A closed window is emitted again when later rows change it."""

from tidegate_spark.windows.aggregates import Aggregate, avg, count, max, merged, min, sum
from tidegate_spark.windows.state import StateStore

__all__ = ["Aggregate", "StateStore", "avg", "count", "max", "merged", "min", "sum"]
