"""What can go wrong between a query and its coordinator.

::

    TidegateError
    ├── InvalidUsage            the code that uses this package must be changed
    ├── CoordinatorUnavailable  nobody answered for as long as the query may wait
    └── Refused                 the coordinator answered no, and said why
        └── JobMissing          it does not know the job
            └── JobDeleted      for the job was deleted
"""

import json
from collections.abc import Mapping
from typing import Any, Self


class TidegateError(Exception):
    """Base of all errors of this package."""


class InvalidUsage(TidegateError, ValueError):
    """An argument that cannot work; the message says what to change."""


class CoordinatorUnavailable(TidegateError):
    """Nobody answered in time. Nothing is lost: Spark keeps the input, and the batch is replayed with its pin.

    ``reason``: what happened to the last attempt.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Refused(TidegateError):
    """The coordinator refused a call and changed nothing.

    ``code`` is its stable name (``query_fenced``, ``pinned_watermark_conflict``, ...), ``problem`` the whole answer
    (RFC 9457).
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", f"http_{status}"))
        super().__init__(f"{problem.get('detail') or 'The coordinator refused the call.'} [{self.code}, {status}]")


class JobMissing(Refused):
    """The coordinator does not know the job: it is yet to be created, or was lost."""

    what_to_do = (
        "The coordinator has no job {job!r}: a query that is started creates it, and so does job.ensure_job(), where "
        "connect() was given rules."
    )

    def of(self, job: str) -> Self:
        """The same error, in words that say what to do."""
        return type(self)(self.status, {**self.problem, "detail": self.what_to_do.format(job=job)})


class JobDeleted(JobMissing):
    """Somebody deleted the job. It is not created again by a query that is running, only by one that is started."""

    what_to_do = (
        "Job {job!r} was deleted. A query that is started creates it again, and so does job.ensure_job(), where "
        "connect() was given rules."
    )


def refused(status: int, body: bytes) -> Refused:
    """The error for an answer that is not 2xx, whoever gave it (a proxy may answer something that is no problem)."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"Answer {status}, which is not the coordinator's: {body[:200].decode(errors='replace')}"}
    kinds = {"job_not_found": JobMissing, "job_deleted": JobDeleted}
    return kinds.get(str(problem.get("code")), Refused)(status, problem)
