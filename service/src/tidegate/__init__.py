"""Tidegate: a watermark coordinator for Spark."""

__version__ = "0.1.0"
