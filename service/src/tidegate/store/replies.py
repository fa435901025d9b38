"""Conversion of the replies of functions to the records of :mod:`tidegate.domain.results`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tidegate.domain.journal import Record
from tidegate.domain.names import SubstreamKey
from tidegate.domain.results import (
    BeginResult,
    CommandResult,
    Hold,
    Holder,
    JobSummary,
    QueryRow,
    SubstreamRow,
    WatermarkState,
)
from tidegate.domain.rows import RowCounts
from tidegate.domain.sketch import Sketch
from tidegate.store.functions import Reply, record


def watermark_state(reply: Reply) -> WatermarkState:
    """Return the watermark state in a reply."""
    return WatermarkState(
        incarnation=reply["incarnation"],
        state_epoch=reply["state_epoch"],
        now_ms=reply["now_ms"],
        watermark=reply.get("watermark"),
        coalesced_watermark=reply.get("coalesced_watermark"),
        complete=bool(reply.get("complete")),
        held_by=_holder(record(reply["held_by"])) if "held_by" in reply else None,
    )


def _holder(found: Reply) -> Holder:
    return Holder(**{field.name: found.get(field.name) for field in fields(Holder)})  # type: ignore[arg-type]


def command_result(reply: Reply) -> CommandResult:
    """Return the result of a command that may be repeated."""
    return CommandResult(watermark_state(reply), bool(reply.get("applied")))


def begin_result(reply: Reply) -> BeginResult:
    """Return the result of a begin."""
    return BeginResult(
        watermark_state(reply),
        pinned_watermark=reply.get("pinned_watermark"),
        replayed=bool(reply.get("replayed")),
        joined=bool(reply.get("joined")),
        latest_event_time=reply.get("latest_event_time"),
        previous_batch_id=reply.get("previous_batch_id"),
        previous_open=bool(reply.get("previous_open")),
        revision=reply["revision"],
    )


def row_counts(found: Mapping[str, Any]) -> RowCounts:
    """Return counts by row class; an absent class is 0."""
    return RowCounts(**{field.name: int(found.get(field.name) or 0) for field in fields(RowCounts)})


def hold(found: Sequence[Any]) -> Hold:
    """Return a hold."""
    of = record(found)
    return Hold(of["hold"], of["at_most"], of.get("expires_ms"), of["reason"])


def summary(reply: Reply) -> JobSummary:
    """Return the summary of a job."""
    return JobSummary(
        max_event_time=reply.get("max_event_time"),
        max_watermark=reply.get("max_watermark"),
        active=reply["active"],
        idle=reply["idle"],
        done=reply["done"],
        all_idle=bool(reply.get("all_idle")),
        counts=row_counts(reply),
        future_rows=int(reply.get("future_rows") or 0),
        tokens_ignored=int(reply.get("tokens_ignored") or 0),
        emissions=reply.get("emissions") or 0,
        throttled=reply.get("throttled") or 0,
        last_contact_ms=reply.get("last_contact_ms"),
        open_batches=reply["open_batches"],
        limits=record(reply["limits"]),
        holds=tuple(sorted(map(hold, reply["holds"]), key=lambda one: one.hold)),
        missing_queries=tuple(sorted(reply["missing_queries"])),
    )


def substream_key(member: str) -> SubstreamKey:
    """Return the key of a member."""
    query, _, name = member.partition("/")
    return query, name


def substream_row(found: Sequence[Any]) -> SubstreamRow:
    """Return a row of the table of substreams."""
    of = record(found)
    query, name = substream_key(of["member"])
    return SubstreamRow(
        query=query,
        substream=name,
        state=of["state"],
        since_ms=of["since_ms"],
        watermark=of.get("watermark"),
        max_event_time=of.get("max_event_time"),
        lag=of.get("lag"),
        last_event_ms=of["last_event_ms"],
        reported_rows=int(of.get("reported_rows") or 0),
        future_rows=int(of.get("future_rows") or 0),
        counts=row_counts(of),
    )


_FLAGS = ("batch_open", "batch_released", "retired")


def query_row(found: Sequence[Any]) -> QueryRow:
    """Return a row of the table of queries."""
    of = record(found)
    flags = {name: bool(of.get(name)) for name in _FLAGS}
    return QueryRow(**{field.name: of.get(field.name) for field in fields(QueryRow)} | flags)  # type: ignore[arg-type]


def sketch(found: Sequence[Any] | None) -> Sketch:
    """Return a sketch, which is empty if ``found`` is None."""
    if found is None:
        return Sketch()
    of = record(found)
    return Sketch(of["step"], of["position"], dict(zip(of["buckets"], of["weights"], strict=True)))


def counts_by_member(found: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the numbers of a hash with fields ``'<class> <member>'``, by member, then by class."""
    counts: dict[str, dict[str, int]] = {}
    for field, number in found.items():
        class_, _, member = field.partition(" ")
        counts.setdefault(member, {})[class_] = int(number)
    return counts


_NUMBERS = {"coalesced_watermark", "watermark", "count", "batch_id", "unattended_ms", "at_most", "up_to"}


def journal_record(entry_id: str, found: Mapping[str, str]) -> Record:
    """Return the record of a stream entry of the journal."""
    details: dict[str, Any] = {}
    for name, text in found.items():
        if name in _NUMBERS:
            details[name] = int(text)
        elif name in ("substreams", "limits"):
            details[name] = json.loads(text)
        elif name != "kind":
            details[name] = text
    return Record(int(entry_id.partition("-")[0]), found["kind"], details)


def journal_records(entries: Sequence[Any]) -> list[tuple[str, Record]]:
    """Return the records of stream entries in a reply, each with its id."""
    return [(entry_id, journal_record(entry_id, record(flat))) for entry_id, flat in entries]


def order(entry_id: str) -> tuple[int, int]:
    """Return a sort key for the id of a record."""
    at_ms, _, number = entry_id.partition("-")
    return int(at_ms), int(number)
