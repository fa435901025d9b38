"""The commands of a job, carried out by the scripts in ``lua/``: one call, one atomic transition.

The replies are the records of :mod:`tidegate.domain.records`; a refusal is raised as the domain's error. Nothing about
a job is kept here, so any number of replicas may serve it.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from tidegate.domain import errors
from tidegate.domain.config import JobConfig
from tidegate.domain.query import PINS_KEPT, KnownPin, Run
from tidegate.domain.records import (
    Accounting,
    Answer,
    Begun,
    Counts,
    Effect,
    Holder,
    QueryRow,
    SubstreamRow,
)
from tidegate.domain.throttle import FrameThrottle
from tidegate.store.keys import JOBS, SECRET, job_key
from tidegate.store.scripts import script


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """What a valid token proves: this incarnation of the job emitted this watermark."""

    incarnation: int
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A job after a PUT: ``created`` tells a new one from one whose rules were changed."""

    answer: Answer
    created: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Status:
    """A job as a whole. ``config`` is the document it was configured with."""

    answer: Answer
    config: dict[str, Any]
    revision: int
    created_ms: int
    top: int | None
    lead: int | None
    active: int
    idle: int
    done: int
    counts: Counts
    tokens_ignored: int


class JobStore:
    """All jobs of one Redis. ``now_ms`` is for tests; without it the time is Redis's own."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._scripts: dict[str, AsyncScript] = {}

    # -- the owner's commands -------------------------------------------------------------------------------------

    async def put(
        self, job: str, config: JobConfig, document: Mapping[str, Any], expected: int | None, now_ms: int | None = None
    ) -> Stored:
        """Creates the job (``expected`` None) or changes the rules of the one at revision ``expected``.

        :raises JobExists, JobNotFound, JobDeleted, RevisionMismatch: see the errors.
        """
        frame = config.throttle.frame if isinstance(config.throttle, FrameThrottle) else None
        # The list of jobs lives outside the job's slot. Named there first, a job can be listed without being there yet
        # (readers pass over it), but never be there without being listed.
        await self.redis.sadd(JOBS, job)
        reply = await self._run(
            "put", job, now_ms, _text(expected), secrets.token_hex(8), json.dumps(document, sort_keys=True),
            str(config.policy.lag), _text(frame.slide if frame else None), _text(frame.offset if frame else None),
            _text(config.idle_timeout_ms),
        )  # fmt: skip
        return Stored(_answer(reply), reply[8] == "1", int(reply[9]))

    async def delete(self, job: str, now_ms: int | None = None) -> None:
        """:raises JobNotFound: for one that never was; deleting twice is no error."""
        await self._run("delete", job, now_ms)

    async def declare(self, job: str, query: str, names: Sequence[str], now_ms: int | None = None) -> Effect:
        return _effect(await self._run("declare", job, now_ms, query, *_column(_members(query, names))))

    async def done(self, job: str, query: str, names: Sequence[str], now_ms: int | None = None) -> Effect:
        return _effect(await self._run("done", job, now_ms, query, *_column(_members(query, names))))

    async def complete(self, job: str, now_ms: int | None = None) -> Effect:
        return _effect(await self._run("complete", job, now_ms))

    # -- the reporters' commands ----------------------------------------------------------------------------------

    async def report(
        self, job: str, tops: Mapping[str, int], token: TokenClaim | None = None, now_ms: int | None = None
    ) -> Effect:
        """Highest event times of reporters without batches."""
        return _effect(
            await self._run(
                "report", job, now_ms, *_token(token), "", "", "", "0", "0",
                *_column(_members("", tops)), *_column(map(str, tops.values())), *_column([]),
            )
        )  # fmt: skip

    async def report_staged(
        self, job: str, run: Run, batch_id: int, partition: int, tops: Mapping[str, int],
        counts: Mapping[str, int] | None = None, token: TokenClaim | None = None, now_ms: int | None = None,
    ) -> Effect:  # fmt: skip
        """Highest event times (and row counts, for the same names) that one partition of a batch saw."""
        rows = [str((counts or {})[name]) for name in tops] if counts else []
        return _effect(
            await self._run(
                "report", job, now_ms, *_token(token), run.query, run.query_id, run.run_id, str(batch_id),
                str(partition), *_column(_members(run.query, tops)), *_column(map(str, tops.values())), *_column(rows),
            )
        )  # fmt: skip

    async def begin(
        self, job: str, run: Run, batch_id: int, known: KnownPin | None = None, keep: int = PINS_KEPT,
        waited_ms: int = 0, token: TokenClaim | None = None, now_ms: int | None = None,
    ) -> Begun:  # fmt: skip
        reply = await self._run(
            "begin", job, now_ms, *_token(token), run.query, run.query_id, run.run_id, str(batch_id),
            "0" if known is None else "1", _text(known.value if known else None), str(max(keep, PINS_KEPT)),
            str(PINS_KEPT), str(waited_ms),
        )  # fmt: skip
        return Begun(_answer(reply), _number(reply[8]), reply[9] == "1")

    async def commit(
        self, job: str, run: Run, batch_id: int, accounting: Accounting | None, waited_ms: int = 0,
        token: TokenClaim | None = None, now_ms: int | None = None,
    ) -> Effect:  # fmt: skip
        names = accounting.substreams if accounting else ()
        counts = [astuple(row) for row in accounting.counts] if accounting else []
        columns = list(zip(*counts, strict=True)) or [()] * len(fields(Counts))
        return _effect(
            await self._run(
                "commit", job, now_ms, *_token(token), run.query, run.query_id, run.run_id, str(batch_id),
                str(waited_ms), *_column(_members(run.query, names)),
                *(argument for column in columns for argument in _column(map(str, column))),
            )
        )  # fmt: skip

    async def heartbeat(
        self, job: str, run: Run, observed_ms: int, waited_ms: int = 0, token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> Effect:  # fmt: skip
        return _effect(
            await self._run(
                "heartbeat", job, now_ms, *_token(token), run.query, run.query_id, run.run_id, str(observed_ms),
                str(PINS_KEPT), str(waited_ms),
            )
        )  # fmt: skip

    async def sweep(self, job: str, now_ms: int | None = None) -> Answer:
        """What time alone has brought about; and the watermark as it is now."""
        return _answer(await self._run("sweep", job, now_ms))

    async def driven_by_time(self, job: str) -> bool:
        """Whether time alone can change anything in the job."""
        return str((await self._run("driven", job, None))[1]) == "1"

    # -- reads ----------------------------------------------------------------------------------------------------

    async def jobs(self) -> list[str]:
        """Names of all jobs that were ever created, sorted; some may have been deleted since."""
        return sorted(str(job) for job in await self.redis.smembers(JOBS))

    async def status(self, job: str, now_ms: int | None = None) -> Status:
        reply = await self._run("status", job, now_ms)
        document, revision, created, top, lead, active, idle, done, *counts, ignored = reply[8:]
        return Status(
            _answer(reply), json.loads(document), int(revision), int(created), _number(top), _number(lead),
            int(active), int(idle), int(done), Counts(*(int(count or 0) for count in counts)), int(ignored or 0),
        )  # fmt: skip

    async def substreams(self, job: str, now_ms: int | None = None) -> tuple[Answer, list[SubstreamRow]]:
        """The table of substreams, by query and name."""
        reply = await self._run("substreams", job, now_ms)
        rows = []
        for member, state, watermark, top, last_event, reported, *counts in reply[8]:
            query, name = member.split("/", 1)
            rows.append(
                SubstreamRow(query, name, state, _number(watermark), _number(top), int(last_event), int(reported or 0),
                             Counts(*(int(count or 0) for count in counts)))
            )  # fmt: skip
        return _answer(reply), sorted(rows, key=lambda row: (row.query, row.substream))

    async def queries(self, job: str, now_ms: int | None = None) -> tuple[Answer, list[QueryRow]]:
        """The queries with their latest batches, by name."""
        reply = await self._run("queries", job, now_ms)
        rows = [
            QueryRow(name, query_id, run_id, _number(latest), is_open == "1", _number(pin), _number(begun),
                     _number(idle_clock), int(last_contact))
            for name, query_id, run_id, latest, is_open, pin, begun, idle_clock, last_contact in reply[8]
        ]  # fmt: skip
        return _answer(reply), sorted(rows, key=lambda row: row.query)

    async def secret(self) -> bytes:
        """The key of the tokens' MAC that all replicas share: made on first use."""
        await self.redis.set(SECRET, secrets.token_hex(32), nx=True)
        return bytes.fromhex(str(await self.redis.get(SECRET)))

    async def check_scripts(self) -> None:
        """:raises RedisError: when the server does not answer, or does not run scripts."""
        await self.redis.eval("return 1", 0)

    async def _run(self, command: str, job: str, now_ms: int | None, *arguments: str) -> list[Any]:
        if command not in self._scripts:
            self._scripts[command] = self.redis.register_script(script(command))
        reply: list[Any] = await self._scripts[command](keys=[job_key(job)], args=[_text(now_ms), *arguments])
        if reply[0] == "error":
            raise _refusal(reply[1], reply[2:])
        return reply


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _number(text: str | None) -> int | None:
    return None if text in (None, "") else int(text)


def _token(token: TokenClaim | None) -> tuple[str, str]:
    return ("", "") if token is None else (str(token.incarnation), _text(token.watermark))


def _members(query: str, names: Sequence[str] | Mapping[str, int]) -> list[str]:
    return [f"{query}/{name}" for name in names]


def _column(values: Any) -> list[str]:
    listed = list(values)
    return [str(len(listed)), *listed]


def _answer(reply: list[Any]) -> Answer:
    _ok, incarnation, epoch, now, watermark, coalesced, complete, holder = reply[:8]
    held = None
    if holder:
        reason, query, substream, batch, since = holder
        held = Holder(reason, query, substream, _number(batch), int(since))
    return Answer(int(incarnation), epoch, int(now), _number(watermark), _number(coalesced), complete == "1", held)


def _refusal(code: str, details: Sequence[Any]) -> errors.DomainError:
    kind = errors.BY_CODE[code]
    return kind(*(_DETAILS.get(field, str)(value) for field, value in zip(kind.fields, details, strict=True)))


_DETAILS: dict[str, Callable[[Any], object]] = {
    "revision": int,
    "batch_id": int,
    "latest_batch_id": int,
    "open_batch_id": int,
    "pin": _number,
    "substreams": lambda members: [member.split("/", 1)[1] for member in members],
}


def _effect(reply: list[Any]) -> Effect:
    return Effect(_answer(reply), reply[8] == "1")
