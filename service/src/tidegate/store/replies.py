"""Replies of the scripts, made into the records of :mod:`tidegate.domain.records`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.domain import errors
from tidegate.domain.journal import Record
from tidegate.domain.records import Answer, Begun, Counts, Effect, Hold, Holder, QueryRow, SubstreamRow, Summary
from tidegate.domain.sketch import Sketch
from tidegate.domain.substream import SubstreamKey

Reply = list[Any]
REST = 8
"""Where the answer ends that every reply begins with, and its own begins."""


def number(text: str | None) -> int | None:
    return None if text in (None, "") else int(text)


def answer(reply: Reply) -> Answer:
    _ok, incarnation, epoch, now, watermark, coalesced_watermark, complete, held_by = reply[:REST]
    held = None
    if held_by:
        reason, query, substream, batch, since, hold, last_event, begun_ms = held_by
        held = Holder(reason, query, substream, number(batch), int(since), hold, number(last_event), number(begun_ms))
    return Answer(
        int(incarnation), epoch, int(now), number(watermark), number(coalesced_watermark), complete == "1", held
    )


def effect(reply: Reply) -> Effect:
    return Effect(answer(reply), reply[REST] == "1")


def begun(reply: Reply) -> Begun:
    pinned_watermark, replayed, joined, latest_event_time, previous, was_open, revision = reply[REST:]
    return Begun(
        answer(reply),
        number(pinned_watermark),
        replayed == "1",
        joined == "1",
        number(latest_event_time),
        number(previous),
        was_open == "1",
        int(revision),
    )


def counts(fields: Sequence[str | None]) -> Counts:
    return Counts(*(int(count or 0) for count in fields))


def summary(fields: Sequence[Any]) -> Summary:
    (
        max_event_time,
        max_watermark,
        active,
        idle,
        done,
        all_idle,
        *rows,
        future,
        ignored,
        emissions,
        throttled,
        heard,
        batches,
        limits,
        holds,
        missing,
    ) = fields
    return Summary(
        number(max_event_time),
        number(max_watermark),
        int(active),
        int(idle),
        int(done),
        all_idle == "1",
        counts(rows),
        int(future or 0),
        int(ignored or 0),
        int(emissions or 0),
        int(throttled or 0),
        number(heard),
        int(batches),
        {limit: int(times) for limit, times in paired(limits).items()},
        tuple(
            sorted(
                (Hold(name, int(at_most), number(expires), reason) for name, at_most, expires, reason in holds),
                key=lambda hold: hold.hold,
            )
        ),
        tuple(sorted(missing)),
    )


def substream_key(member: str) -> SubstreamKey:
    query, _, name = member.partition("/")
    return query, name


def substream_rows(rows: Sequence[Sequence[Any]]) -> list[SubstreamRow]:
    found = []
    for member, state, since, watermark, max_event_time, lag, last_event, reported, future, *classes in rows:
        query, name = substream_key(member)
        found.append(
            SubstreamRow(
                query,
                name,
                state,
                int(since),
                number(watermark),
                number(max_event_time),
                number(lag),
                int(last_event),
                int(reported or 0),
                int(future or 0),
                counts(classes),
            )
        )
    return found


def by_class(fields: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Numbers by member, and by class, of a hash that has them under ``'<class> <member>'``."""
    found: dict[str, dict[str, int]] = {}
    for field, number_of in fields.items():
        class_, _, of = field.partition(" ")
        found.setdefault(of, {})[class_] = int(number_of)
    return found


def sketch(text: str | None) -> Sketch:
    step, position, *flat = map(int, text.split(",")) if text else (0, 0)
    return Sketch(step, position, dict(zip(flat[::2], flat[1::2], strict=True)))


def query_rows(rows: Sequence[Sequence[Any]]) -> list[QueryRow]:
    found = [
        QueryRow(
            name,
            query_id,
            run_id,
            number(latest),
            is_open == "1",
            number(pin),
            number(begun_ms),
            number(clock),
            int(contact),
            released == "1",
            retired == "1",
        )
        for name, query_id, run_id, latest, is_open, pin, begun_ms, clock, contact, released, retired in rows
    ]
    return sorted(found, key=lambda row: row.query)


def paired(flat: Sequence[str]) -> dict[str, str]:
    """Names and values as scripts give them: one after the other."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


_NUMBERS = {"coalesced_watermark", "watermark", "count", "batch_id", "unattended_ms", "at_most", "up_to"}


def record(entry_id: str, fields: Mapping[str, str]) -> Record:
    """An entry of the stream of what the machine did."""
    details: dict[str, Any] = {}
    for name, text in fields.items():
        if name in _NUMBERS:
            details[name] = int(text)
        elif name in ("substreams", "limits"):
            details[name] = json.loads(text)
        elif name != "kind":
            details[name] = text
    return Record(int(entry_id.partition("-")[0]), fields["kind"], details)


def records(entries: Sequence[Any]) -> list[tuple[str, Record]]:
    """Entries as scripts give them, each with its id."""
    return [(entry_id, record(entry_id, paired(flat))) for entry_id, flat in entries]


def order(entry_id: str) -> tuple[int, int]:
    """Ids of entries, as they happened."""
    at_ms, _, number = entry_id.partition("-")
    return int(at_ms), int(number)


def refusal(code: str, details: Sequence[Any]) -> errors.DomainError:
    kind = errors.BY_CODE[code]
    return kind(*(_DETAILS.get(field, str)(value) for field, value in zip(kind.fields, details, strict=True)))


_DETAILS: dict[str, Callable[[Any], object]] = {
    "revision": int,
    "batch_id": int,
    "latest_batch_id": int,
    "open_batch_id": int,
    "missing": int,
    "pinned_watermark": number,
    "at_most": int,
    "now_ms": int,
    "limit": int,
    "substreams": lambda members: [member.split("/", 1)[1] for member in members],
}
