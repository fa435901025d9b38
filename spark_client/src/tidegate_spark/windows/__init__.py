"""Windows of event time that close by the job's watermark, and are emitted again when later rows change them."""

from tidegate_spark.windows.aggregates import Aggregate, avg, count, max, merged, min, sum
from tidegate_spark.windows.state import StateStore

__all__ = ["Aggregate", "StateStore", "avg", "count", "max", "merged", "min", "sum"]
