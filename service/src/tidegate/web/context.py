"""Components of a replica that its HTTP calls use."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from starlette.convertors import StringConvertor, register_url_convertor

from tidegate.auth.keyring import Keyring
from tidegate.auth.revocation import Revocation
from tidegate.auth.sessions import Sessions
from tidegate.auth.usage import KeyUsage
from tidegate.auth.watermark_tokens import Tokens
from tidegate.domain.values import ID, ID_RULE
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.wakeups import WakeUps
from tidegate.store.jobs import JobStore
from tidegate.views.overview import Overview
from tidegate.views.reader import Reader
from tidegate.views.types import Id
from tidegate.web.body_reader import BodyReader


class _IdConvertor(StringConvertor):
    """A converter for a part of a path that ends before a slash or before the colon of a verb."""

    regex = "[^/:]+"


register_url_convertor("id", _IdConvertor())

JobId = Annotated[
    Id, Path(json_schema_extra={"pattern": ID}, description=f"Name of the job: {ID_RULE}.", examples=["flights"])
]


@dataclass(frozen=True, slots=True)
class Context:
    """Components of a replica that its HTTP calls use.

    Attributes:
        max_scraped_substreams: Maximum number of substreams in one answer of ``/metrics``.
    """

    store: JobStore
    bodies: BodyReader
    reader: Reader
    tokens: Tokens
    wakeups: WakeUps
    keyring: Keyring | None
    sessions: Sessions
    overview: Overview
    metrics: Metrics
    usage: KeyUsage
    revocation: Revocation
    max_scraped_substreams: int


def context_of(request: Request) -> Context:
    """Return the context of the replica that serves a request."""
    context: Context = request.app.state.context
    return context


async def _context(request: Request) -> Context:
    return context_of(request)


ContextOf = Annotated[Context, Depends(_context)]
