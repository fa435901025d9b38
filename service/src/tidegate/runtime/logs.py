"""The log of a replica: a line an event, as text for people or as JSON for what collects it.

Whatever is logged while a request is served says which one: its id, and the job, query and batch it is about.
"""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor

from tidegate.escapes import visible

Format = Literal["text", "json"]
UNESCAPED = ("exception", "stack", "exc_info")
"""Members of several lines, made by Python itself."""
MEMBERS = ("call", "status", "code")
"""What an event may tell besides."""


def _escaped(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape what a terminal must not get: names of substreams and texts of clients may be in any member."""
    for name, value in event.items():
        if isinstance(value, str) and name not in UNESCAPED:
            event[name] = visible(value)
    return event


def configure(level: str, form: Format) -> None:
    """Everything that is logged goes to standard error, from ``level`` on."""
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=MEMBERS),
        _escaped,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    else:
        plain = structlog.dev.plain_traceback
        last.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=common))
    logging.basicConfig(level=level, handlers=[handler], force=True)
