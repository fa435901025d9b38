"""Log records that name their query, in the text and in attributes."""

import logging
from collections.abc import MutableMapping
from typing import Any

from tidegate_spark.errors import TidegateError

HEARTBEATS_FAIL = "heartbeats fail", "heartbeats succeed again"


class QueryLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one query. Records have the attributes ``job``, ``query`` and ``batch`` (from ``extra``)."""

    def __init__(self, job: str, query: str) -> None:
        super().__init__(logging.getLogger("tidegate"), {"job": job, "query": query})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Prefix the message with the job, the query and the batch."""
        assert self.extra is not None
        carried = {"batch": None, **self.extra, **(kwargs.get("extra") or {})}
        where = f"{carried['job']}/{carried['query']}" + ("" if carried["batch"] is None else f" {carried['batch']}")
        return f"{where}: {msg}", {**kwargs, "extra": carried}


class FailureLog:
    """A log of each failure with a new reason, and of the first success after failures."""

    def __init__(self, log: QueryLog, fails: str, succeeds: str) -> None:
        self._log, self._fails, self._succeeds = log, fails, succeeds
        self._code: str | None = None

    def failed(self, error: Exception) -> None:
        """Record a failure."""
        code = str(getattr(error, "code", type(error).__name__))
        if code != self._code:
            # An error of another package is unexpected, so log its traceback.
            self._log.warning("%s: %s", self._fails, error, exc_info=not isinstance(error, TidegateError))
        self._code = code

    def succeeded(self) -> None:
        """Record a success."""
        if self._code is not None:
            self._log.warning("%s", self._succeeds)
        self._code = None
