"""Conversion of the replies of functions to the records of ``results`` and ``views`` in the domain."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

from tidegate.domain.completeness import RowCounts, Sketch
from tidegate.domain.history import Record, Sample
from tidegate.domain.job import Hold
from tidegate.domain.results import BeginResult, CommandResult, Holder, HoldReason, WatermarkState
from tidegate.domain.values import SubstreamKey
from tidegate.domain.views import JobSummary, QueryRow, SubstreamRow
from tidegate.store.functions import Reply, record

Row = TypeVar("Row")


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {int: lambda value: int(value or 0), bool: bool}
"""Conversions by the type of a field. Redis sends long sums as text, and may omit zero and false."""


@cache
def _members(kind: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    return [(field.name, _CONVERSIONS.get(field.type)) for field in fields(kind)]


def row_of(kind: Callable[..., Row], found: Reply, **given: Any) -> Row:
    """Return a dataclass with the values that a reply has under the names of its fields, and with the given values."""
    values = {
        name: found.get(name) if convert is None else convert(found.get(name)) for name, convert in _members(kind)
    }
    return kind(**values | given)


def watermark_state(reply: Reply) -> WatermarkState:
    """Return the watermark state in a reply."""
    return WatermarkState(
        incarnation=reply["incarnation"],
        state_epoch=reply["state_epoch"],
        now_ms=reply["now_ms"],
        watermark=reply.get("watermark"),
        coalesced_watermark=reply.get("coalesced_watermark"),
        complete=bool(reply.get("complete")),
        held_by=row_of(Holder, record(reply["held_by"])) if "held_by" in reply else None,
    )


def command_result(reply: Reply) -> CommandResult:
    """Return the result of a repeatable command in a reply."""
    return CommandResult(watermark_state(reply), bool(reply.get("applied")))


def begin_result(reply: Reply) -> BeginResult:
    """Return the result of the command ``begin`` in a reply."""
    return row_of(BeginResult, reply, state=watermark_state(reply))


def hold(found: Sequence[Any]) -> Hold:
    """Return the hold in a part of a reply."""
    return row_of(Hold, record(found))


def summary(reply: Reply) -> JobSummary:
    """Return the summary of a job in a reply."""
    return row_of(
        JobSummary,
        reply,
        counts=row_of(RowCounts, reply),
        limits=record(reply["limits"]),
        holds=tuple(sorted(map(hold, reply["holds"]), key=attrgetter("hold"))),
        missing_queries=tuple(sorted(reply["missing_queries"])),
    )


def substream_key(member: str) -> SubstreamKey:
    """Return the query and the name of a member."""
    query, _, name = member.partition("/")
    return query, name


def substream_row(found: Sequence[Any]) -> SubstreamRow:
    """Return the substream in a part of a reply."""
    of = record(found)
    query, name = substream_key(of["member"])
    return row_of(SubstreamRow, of, query=query, substream=name, counts=row_of(RowCounts, of))


def query_row(found: Sequence[Any]) -> QueryRow:
    """Return the query in a part of a reply."""
    return row_of(QueryRow, record(found))


def sketch(found: Sequence[Any] | None) -> Sketch:
    """Return the sketch in a part of a reply. The sketch is empty if ``found`` is None."""
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


_NUMBERS = ("coalesced_watermark", "watermark", "count", "batch_id", "unattended_ms", "at_most", "up_to")
_DETAILS = dict.fromkeys(_NUMBERS, int) | dict.fromkeys(("substreams", "limits"), json.loads)
"""Conversions of the details of a record that are not text."""


def _history_record(entry_id: str, found: Mapping[str, str]) -> Record:
    details = {name: _DETAILS.get(name, str)(text) for name, text in found.items() if name != "kind"}
    return Record(int(entry_id.partition("-")[0]), found["kind"], details)


def history_records(entries: Sequence[Any]) -> list[tuple[str, Record]]:
    """Return the records of stream entries in a reply, each with its id."""
    return [(entry_id, _history_record(entry_id, record(flat))) for entry_id, flat in entries]


def sample(found: str) -> Sample:
    """Return a sample of a timeline, whose text is ``<time> <watermark> <reason> <query> <name>``."""
    at_ms, watermark, reason, query, name = found.split(" ", 4)
    return Sample(
        int(at_ms), int(watermark) if watermark else None, cast(HoldReason | None, reason or None), query, name
    )


def order(entry_id: str) -> tuple[int, int]:
    """Return a sort key for the id of a record."""
    at_ms, _, number = entry_id.partition("-")
    return int(at_ms), int(number)
