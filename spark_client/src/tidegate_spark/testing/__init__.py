"""A coordinator process, input batches and a Java runtime for tests and demos.

:mod:`tidegate_spark.testing.fixtures` has fixtures for pytest.
"""

from tidegate_spark.testing.batches import FileBatches
from tidegate_spark.testing.java import ensure_java
from tidegate_spark.testing.server import CoordinatorProcess

__all__ = ["CoordinatorProcess", "FileBatches", "ensure_java"]
