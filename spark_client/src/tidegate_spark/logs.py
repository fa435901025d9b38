"""Log records that say whom they are about: in their text for people, in their attributes for programs."""

import logging
from collections.abc import MutableMapping
from typing import Any


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
