"""The log of a replica: one line for each event, as text or as JSON.

Each event during a request contains the id, job, query and batch of the request.
"""

import logging
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor

from tidegate.escapes import visible

Format = Literal["text", "json"]
UNESCAPED = ("exception", "stack", "exc_info")
"""Members that keep their line breaks, such as tracebacks."""
MEMBERS = ("call", "status", "code", "client", "path", "not_logged")
"""Members that an event can have in addition to the members of its request."""
AUDIT = "tidegate.audit"
"""Name of the logger for actions of operators and refused access."""


_REQUEST: ContextVar[dict[str, object]] = ContextVar("request")
"""Members of the events of the current request."""


def begin_request(request_id: str) -> None:
    """Add the id of a request to the following events of this task, and forget the members of an earlier request."""
    _REQUEST.set({"request": request_id})


def identify(**members: object) -> None:
    """Add members to the following events of the current request."""
    _REQUEST.get().update(members)


def _add_request(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {**_REQUEST.get({}), **event}


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    # Any member can contain names of substreams and texts of clients.
    for name, value in event.items():
        if isinstance(value, str) and name not in UNESCAPED:
            event[name] = visible(value)
    return event


_COMMON: list[Processor] = [
    _add_request,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(allow=MEMBERS),
    _escape,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_JSON: list[Processor] = [
    structlog.processors.format_exc_info,
    structlog.processors.JSONRenderer(ensure_ascii=False),
]


def configure(level: str, form: Format, audit_file: Path | None = None) -> None:
    """Set up the log on standard error, and write the audit log to ``audit_file`` as JSON, if given.

    Raises:
        OSError: If the audit file cannot be opened.
    """
    text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    handler = _formatted(logging.StreamHandler(), _JSON if form == "json" else [text])
    logging.basicConfig(level=level, handlers=[handler], force=True)
    audit = logging.getLogger(AUDIT)
    audit.setLevel(logging.INFO)
    if audit_file is not None:
        # This handler opens the file again after logrotate has moved it.
        audit.handlers = [_formatted(WatchedFileHandler(audit_file), _JSON)]
        audit.propagate = False


def _formatted(handler: logging.Handler, renderers: Sequence[Processor]) -> logging.Handler:
    processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors, foreign_pre_chain=_COMMON))
    return handler
