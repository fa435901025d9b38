"""Errors of the client.

::

    TidegateError
    ├── InvalidUsage            an argument is invalid; change the program
    ├── CoordinatorUnavailable  the coordinator did not answer in time
    ├── UnsafeWrite             an append could write rows twice, or leave them out
    └── Refused                 the coordinator refused a call
        └── JobMissing          the job does not exist
            └── JobDeleted      an operator deleted the job
"""

import json
from collections.abc import Mapping
from typing import Any, Self


class TidegateError(Exception):
    """Base class of all errors of this package."""


class InvalidUsage(TidegateError, ValueError):
    """An argument or a setting is invalid; the message says what to change."""


class CoordinatorUnavailable(TidegateError):
    """The coordinator did not answer in time. Nothing is lost: Spark replays the batch with its pinned watermark.

    Attributes:
        reason: Reason for the failure of the last attempt.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class UnsafeWrite(TidegateError):
    """``write_once`` cannot find out whether a table has a batch, and has written nothing."""


class Refused(TidegateError):
    """The coordinator refused a call and changed nothing.

    Attributes:
        status: HTTP status of the answer.
        code: Stable error code, such as ``query_fenced`` or ``pinned_watermark_conflict``.
        problem: The problem details of the answer, a JSON object (RFC 9457).
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", f"http_{status}"))
        super().__init__(f"{problem.get('detail') or 'The coordinator refused the call.'} [{self.code}, {status}]")


class JobMissing(Refused):
    """The job does not exist: it was never created, or the coordinator has lost it."""

    what_to_do = (
        "The coordinator has no job {job!r}: start a query or call job.ensure_job() to create it. Both need a "
        "configuration: connect(..., config=...)."
    )

    def of(self, job: str) -> Self:
        """Return a copy of the error with a message that names the job and the remedy."""
        return type(self)(self.status, {**self.problem, "detail": self.what_to_do.format(job=job)})


class JobDeleted(JobMissing):
    """An operator deleted the job. Running queries do not create the job again, but the next start of a query does."""

    what_to_do = (
        "Job {job!r} was deleted: start a query or call job.ensure_job() to create it again. Both need a "
        "configuration: connect(..., config=...)."
    )


def refusal_of(status: int, body: bytes) -> Refused:
    """Return the error for an unsuccessful answer. The answer may come from a proxy and have any body."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        text = body[:200].decode(errors="replace")
        problem = {"detail": f"Answer {status} is not from the coordinator; check the address and proxies: {text}"}
    kinds = {"job_not_found": JobMissing, "job_deleted": JobDeleted}
    return kinds.get(str(problem.get("code")), Refused)(status, problem)
