"""The configuration of a job, under the name that tests of the client import."""

from tidegate.reads.config import JobDocument

__all__ = ["JobDocument"]
