"""What the routes have in common: the store, the tokens, the waiting, and how an answer becomes a record."""

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Path, Request
from starlette.convertors import Convertor, register_url_convertor

from tidegate.api.access import Caller
from tidegate.api.schemas.types import ID
from tidegate.api.tokens import Tokens
from tidegate.auth.keyring import Keyring
from tidegate.auth.revocation import Revocation
from tidegate.auth.usage import KeyUsage
from tidegate.domain.results import WatermarkState
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.overview import Overview
from tidegate.runtime.wakeups import WakeUps
from tidegate.store.jobs import JobStore


class _IdConvertor(Convertor[str]):
    """A part of a path, up to a slash or to the colon before a verb; what ids look like is said by their types."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", _IdConvertor())

JobId = Annotated[str, Path(pattern=ID, description="letters, digits and . _ ~ -")]
QueryId = Annotated[str, Path(pattern=ID)]
BatchId = Annotated[int, Path(ge=0, le=2**53 - 1)]


@dataclass(frozen=True, slots=True)
class Context:
    """One replica's means of serving a request."""

    store: JobStore
    tokens: Tokens
    wakeups: WakeUps
    keyring: Keyring | None
    overview: Overview
    metrics: Metrics
    usage: KeyUsage
    revocation: Revocation
    stale_after_ms: int
    max_scraped_substreams: int
    bulk_reads: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while all substreams of large jobs are read: one such call at a time bounds the memory of a replica."""

    def stands(self, caller: Caller) -> bool:
        """Whether who began to wait may still do so."""
        return self.keyring is None or caller.key is None or self.keyring.stands(caller.key)

    def watermark(self, job: str, answer: WatermarkState) -> dict[str, Any]:
        """The members of a :class:`~tidegate.api.schemas.jobs.WatermarkRecord`."""
        return {
            "job": job,
            "watermark": answer.watermark,
            "coalesced_watermark": answer.coalesced_watermark,
            "complete": answer.complete,
            "now_ms": answer.now_ms,
            "state_epoch": answer.state_epoch,
            "incarnation": answer.incarnation,
            "watermark_token": self.tokens.issue(job, answer),
            "held_by": None if answer.held_by is None else asdict(answer.held_by),
        }


async def context(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


Ctx = Annotated[Context, Depends(context)]
