"""The points of a batch at which a driver can die, and a callback for each point."""

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from tidegate_spark.claims import AppendRecord
from tidegate_spark.hook.batch_function import BatchFunction
from tidegate_spark.protocol.effects import Response, Send
from tidegate_spark.protocol.transport import HttpTransport
from tidegate_spark.tables import DeltaTable, IcebergTable, Table
from tidegate_spark.windows.state import FileState
from tidegate_spark.windows.windowing import Windowing

IN_THE_FUNCTION = "in the function"
POINTS = ["before the pin", "after the pin", "after the reports", IN_THE_FUNCTION, "before the commit", "after it"]
"""Points of a batch, in order. The user's function itself reports ``IN_THE_FUNCTION``."""

POINTS_WITH_WINDOWS = [
    "before the state",
    "after the state",
    "before the commit",
    "after it",
    "after the version",
    IN_THE_FUNCTION,
    "after the function",
]
"""Points of a batch with windows, in order. After the last one, the driver tells that the windows are written."""


def points_of_appends(*outputs: str) -> list[str]:
    """Return the points around each append to a Delta table and then to an Iceberg table, in order."""
    return [f"{when} {form} {output}" for output in outputs for form in FORMS_OF for when in ("before", "after")]


AFTER_SPARKS_COMMIT = "after Spark's commit"
"""The point of a native batch outside the user's function. Native queries have no hook."""

FORMS_OF: dict[str, type[Table]] = {"delta": DeltaTable, "iceberg": IcebergTable}

Reached = Callable[[str, int], None]
"""A callback with the point and the batch."""


def watch(reached: Reached, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Call ``reached`` at each point of each batch that this process runs."""

    def around(owner: Any, name: str, before: str | None, after: str, batch_of: Callable[..., int]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            if before is not None:
                reached(before, batch_of(*args))
            answer = original(*args, **named)
            reached(after, batch_of(*args))
            return answer

        replace(owner, name, wrapped)

    _watch_calls(reached, replace)
    _watch_appends(reached, replace)
    around(BatchFunction, "_fold", None, "after the reports", lambda *args: args[3].batch_id)
    around(FileState, "write", "before the state", "after the state", lambda *args: args[1])
    around(Windowing, "_emit", "after the version", "after the function", lambda *args: args[1].batch.batch_id)


def _watch_appends(reached: Reached, replace: Callable[[Any, str, Any], None]) -> None:
    """Call ``reached`` before and after each append to a table."""

    def watched(form: str, append: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(table: Table, df: DataFrame, record: AppendRecord, *rest: Any) -> Any:
            output = record.writer.split("/")[1]
            reached(f"before {form} {output}", record.batch_id)
            answer = append(table, df, record, *rest)
            reached(f"after {form} {output}", record.batch_id)
            return answer

        return wrapped

    for form, owner in FORMS_OF.items():
        replace(owner, "append_once", watched(form, owner.append_once))


_CALLS = {
    "PUT": (re.compile(r"/queries/[^/]+/batches/(\d+)$"), "before the pin", "after the pin"),
    "POST": (re.compile(r"/queries/[^/]+/batches/(\d+):commit$"), "before the commit", "after it"),
}


def _watch_calls(reached: Reached, replace: Callable[[Any, str, Any], None]) -> None:
    """Call ``reached`` before a begin or a commit is sent and after it was answered."""
    send = HttpTransport.send

    def watched(self: HttpTransport, request: Send) -> Response:
        pattern, before, after = _CALLS.get(request.method, (None, "", ""))
        found = pattern.search(request.path) if pattern else None
        if found is None:
            return send(self, request)
        reached(before, int(found[1]))
        response = send(self, request)
        if response.status < 300:
            reached(after, int(found[1]))
        return response

    replace(HttpTransport, "send", watched)
