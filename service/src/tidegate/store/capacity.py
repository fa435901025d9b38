"""The capacity of a store: its highest numbers of jobs and substreams."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Highest number of jobs, and of substreams of one job; None: no limit."""

    jobs: int | None = None
    substreams: int | None = None

    def max_substreams(self, quota: int | None) -> int | None:
        """Return the lower of the limit on substreams and ``quota``; None if both are None."""
        return min((limit for limit in (quota, self.substreams) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class JobQuota:
    """A limit of ``jobs`` on the number of jobs whose names start with ``prefix``."""

    prefix: str
    jobs: int
