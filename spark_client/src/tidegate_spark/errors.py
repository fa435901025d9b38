"""Errors of the client.

::

    TidegateError
    ├── InvalidUsage            the program that uses this package must be changed
    ├── CoordinatorUnavailable  the coordinator did not answer for as long as the query may wait
    └── Refused                 the coordinator refused a call, and said why
        └── JobMissing          it has no such job
            └── JobDeleted      because an operator deleted it
"""

import json
from collections.abc import Mapping
from typing import Any, Self


class TidegateError(Exception):
    """Base of all errors of this package."""


class InvalidUsage(TidegateError, ValueError):
    """An argument that cannot work; the message says what to change."""


class CoordinatorUnavailable(TidegateError):
    """The coordinator did not answer in time. Nothing is lost: Spark replays the batch with its pinned watermark.

    Attributes:
        reason: What happened to the last attempt.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Refused(TidegateError):
    """The coordinator refused a call and changed nothing.

    Attributes:
        status: HTTP status of the answer.
        code: Its stable name, such as ``query_fenced`` or ``pinned_watermark_conflict``.
        problem: The whole answer (RFC 9457).
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", f"http_{status}"))
        super().__init__(f"{problem.get('detail') or 'The coordinator refused the call.'} [{self.code}, {status}]")


class JobMissing(Refused):
    """The coordinator has no such job: it was never created, or the coordinator has lost it."""

    what_to_do = (
        "The coordinator has no job {job!r}: start a query or call job.ensure_job() to create it. Both need a "
        "configuration: connect(..., config=...)."
    )

    def of(self, job: str) -> Self:
        """Return the same error, with a message that says what to do."""
        return type(self)(self.status, {**self.problem, "detail": self.what_to_do.format(job=job)})


class JobDeleted(JobMissing):
    """An operator deleted the job. A running query does not create it again, the next start of a query does."""

    what_to_do = (
        "Job {job!r} was deleted: start a query or call job.ensure_job() to create it again. Both need a "
        "configuration: connect(..., config=...)."
    )


def refusal_of(status: int, body: bytes) -> Refused:
    """Return the error for an answer that is not 2xx; it may come from a proxy and have any body."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"Answer {status}, which is not the coordinator's: {body[:200].decode(errors='replace')}"}
    kinds = {"job_not_found": JobMissing, "job_deleted": JobDeleted}
    return kinds.get(str(problem.get("code")), Refused)(status, problem)
