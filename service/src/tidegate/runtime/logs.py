"""The log of a replica: a line an event, as text for people or as JSON for what collects it.

Whatever is logged while a request is served says which one: its id, and the job, query and batch it is about.
"""

import logging
import sys
from collections.abc import Sequence
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor

from tidegate.escapes import visible

Format = Literal["text", "json"]
UNESCAPED = ("exception", "stack", "exc_info")
"""Members of several lines, made by Python itself."""
MEMBERS = ("call", "status", "code", "client", "path", "not_logged")
"""Further members that an event may have."""
AUDIT = "tidegate.audit"
"""Logger of what operators did and who was refused."""


def _escaped(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape what a terminal must not get: names of substreams and texts of clients may be in any member."""
    for name, value in event.items():
        if isinstance(value, str) and name not in UNESCAPED:
            event[name] = visible(value)
    return event


def configure(level: str, form: Format, audit_file: Path | None = None) -> None:
    """Log to standard error, from ``level`` on; the audit log to a file of its own, as JSON, if there is one.

    Raises:
        OSError: If the file cannot be opened.
    """
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=MEMBERS),
        _escaped,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_json: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]
    plain = structlog.dev.plain_traceback
    as_text = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]

    def formatted(handler: logging.Handler, last: Sequence[Processor]) -> logging.Handler:
        processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors, foreign_pre_chain=common))
        return handler

    handler = formatted(logging.StreamHandler(), as_json if form == "json" else as_text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    audit = logging.getLogger(AUDIT)
    audit.setLevel(logging.INFO)
    if audit_file is not None:
        # Opened anew when it was moved away: logrotate needs no signal.
        audit.handlers = [formatted(WatchedFileHandler(audit_file), as_json)]
        audit.propagate = False
