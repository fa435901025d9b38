"""Log records that say whom they are about: in their text for people, in their attributes for programs."""

import logging
from collections.abc import MutableMapping
from typing import Any

from tidegate_spark.errors import TidegateError


class QueryLog(logging.LoggerAdapter[logging.Logger]):
    """What is logged of one query. Each record carries ``job``, ``query`` and, where it is of one, ``batch``.

    A call names its batch, and whatever else is to be carried along, in ``extra``.
    """

    def __init__(self, job: str, query: str) -> None:
        super().__init__(logging.getLogger("tidegate"), {"job": job, "query": query})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        assert self.extra is not None
        carried = {"batch": None, **self.extra, **(kwargs.get("extra") or {})}
        where = f"{carried['job']}/{carried['query']}" + ("" if carried["batch"] is None else f" {carried['batch']}")
        return f"{where}: {msg}", {**kwargs, "extra": carried}


class Failing:
    """Logs when something begins to fail, or to fail in another way, and when it works again; not each time between."""

    def __init__(self, log: QueryLog, fails: str, works: str) -> None:
        self._log, self._fails, self._works = log, fails, works
        self._kind: str | None = None

    def failed(self, error: Exception) -> None:
        kind = str(getattr(error, "code", type(error).__name__))
        if kind != self._kind:
            # What nobody expects is shown with where it came from.
            self._log.warning("%s: %s", self._fails, error, exc_info=not isinstance(error, TidegateError))
        self._kind = kind

    def worked(self) -> None:
        if self._kind is not None:
            self._log.warning("%s", self._works)
        self._kind = None
