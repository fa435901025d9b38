"""What tests, demos and laptops need around a coordinated query: a coordinator of their own, and a Java."""

from tidegate_spark.testing.java import ensure_java
from tidegate_spark.testing.server import CoordinatorProcess

__all__ = ["CoordinatorProcess", "ensure_java"]
