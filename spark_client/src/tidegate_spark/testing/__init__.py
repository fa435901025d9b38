"""What tests, demos and laptops need around a coordinated query: a coordinator of their own, batches, and a Java.

For pytest there are fixtures, in :mod:`tidegate_spark.testing.fixtures`.
"""

from tidegate_spark.testing.batches import FileBatches
from tidegate_spark.testing.java import ensure_java
from tidegate_spark.testing.server import CoordinatorProcess

__all__ = ["CoordinatorProcess", "FileBatches", "ensure_java"]
