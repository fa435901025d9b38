"""The history of a job: its records, with ids."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from pydantic import ConfigDict, Field

from tidegate.domain.frames import FrameState
from tidegate.domain.history import MOVEMENTS, RECORDS_KEPT, Kind, Record
from tidegate.store.replies import HistoryReply, order
from tidegate.views.reader import Reader
from tidegate.views.types import Answer
from tidegate.views.watermark import WatermarkState

RECORD_ID = r"^[0-9]{1,16}-[0-9]{1,19}$"

FILTERS: Mapping[str, Collection[Kind]] = {
    "movements": MOVEMENTS,
    **{kind.value: (kind,) for kind in Kind if kind not in MOVEMENTS},
}
"""Groups of kinds to which the page can limit the history, by name."""

_KINDS = (
    "`created`: the job or a new incarnation was created. `config`: the configuration changed. `emission`: the "
    "watermark moved. `coalesced_watermark`: the coalesced watermark moved, the watermark did not. `written`: only "
    "the written watermark moved. `idle`: substreams became idle. "
    "`active`: substreams count again. `all_idle`: no substream is active any more. `not_all_idle`: a substream is "
    "active again. `batch_released`: an open batch no longer holds the watermark. `joined`: an unexpected query "
    "began. `fenced`: a newer run replaced a run. `future`: the coordinator ignored event times too far in the "
    "future. `relearning`: delays grew, so the policy learns the lag again. `offsets_skipped`: a batch began above "
    "the end of the batch before, so records were never read. `offsets_restarted`: a topic was deleted and created "
    "again. `restarted`: substreams start again, because their partitions are new. `ended`: substreams are done, "
    "because their source no longer has their partitions. `watermark_restored`: a token restored a watermark that the "
    "store had lost. `unattended`: no coordinator ran for some time, which does not count towards `idle_timeout_ms`. "
    "`hold_expired`: a hold expired. `frame`: frames were finished, or rows have changed a finished frame. `frames`: "
    "the declaration of the frames changed. `action`: an operator or client acted."
)


class PassedSubstreams(Answer):
    """The substreams that the watermark passed because of a limit."""

    limit: str = Field(description="Name of the limit.", examples=["max_retention_ms"])
    count: int = Field(description="Number of substreams.", examples=[2])
    substreams: list[str] = Field(
        description="The first 20 substreams, as `query/substream`.", examples=[["departures/HNL", "departures/ANC"]]
    )


class HistoryRecord(Answer):
    """One event in the history of a job. Members that do not apply to its kind are absent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "1357554600000-0",
                    "at_ms": 1357554600000,
                    "kind": "emission",
                    "coalesced_watermark": 1357554600000,
                    "watermark": 1357552800000,
                    "written_watermark": 1357549200000,
                    "held_by": "slow",
                    "query": "departures",
                    "substream": "HNL",
                }
            ]
        }
    )

    id: str = Field(description="Id of the record. The ids of a job increase with time.", examples=["1357554600000-0"])
    at_ms: int = Field(description="Processing time of the event.", examples=[1357554600000])
    kind: Kind = Field(description=_KINDS, examples=["emission"])
    watermark: int | None = Field(
        default=None,
        description="Watermark after the event. Null if the job has no watermark.",
        examples=[1357552800000],
    )
    coalesced_watermark: int | None = Field(
        default=None, description="Coalesced watermark after the event.", examples=[1357554600000]
    )
    written_watermark: int | None = Field(
        default=None, description="Written watermark after the event.", examples=[1357552800000]
    )
    held_by: str | None = Field(default=None, description="`reason` of the holder of the watermark.", examples=["slow"])
    query: str | None = Field(default=None, description="Query of the event or the holder.", examples=["departures"])
    substream: str | None = Field(default=None, description="Substream that holds the watermark.", examples=["HNL"])
    batch_id: int | None = Field(default=None, description="Batch of the event or the holder.", examples=[41])
    hold: str | None = Field(default=None, description="Hold of the event or the holder.", examples=["audit"])
    limits: list[PassedSubstreams] | None = Field(
        default=None, description="Limits that let the watermark pass substreams."
    )
    limit: str | None = Field(default=None, description="Limit that acted.", examples=["idle_timeout_ms"])
    count: int | None = Field(
        default=None,
        description="Number of affected substreams, of skipped offsets, or of finished frames.",
        examples=[1],
    )
    substreams: list[str] | None = Field(
        default=None,
        description="The first 20 affected substreams, as `query/substream`.",
        examples=[["departures/HNL"]],
    )
    partitions: list[str] | None = Field(
        default=None, description="The first 20 affected partitions.", examples=[["landings/2"]]
    )
    run_id: str | None = Field(
        default=None, description="Run that was fenced.", examples=["c2f7a9d4-51f0-4c2f-a3de-1b7f60d0a9e1"]
    )
    unattended_ms: int | None = Field(
        default=None, description="Time without a coordinator in milliseconds.", examples=[120000]
    )
    action: str | None = Field(default=None, description="Name of the action.", examples=["evict"])
    successor: str | None = Field(
        default=None, description="Query that received the substreams.", examples=["departures-v2"]
    )
    consumer: str | None = Field(
        default=None, description="Consumer of the frames that was forgotten.", examples=["airflow"]
    )
    at_most: int | None = Field(default=None, description="Value of the hold.", examples=[1357552800000])
    up_to: int | None = Field(default=None, description="Requested end of the input.", examples=[1357603200000])
    start: int | None = Field(default=None, description="Start of the first frame.", examples=[1357552800000])
    end: int | None = Field(default=None, description="End of the last frame.", examples=[1357556400000])
    empty: int | None = Field(default=None, description="Number of finished frames without rows.", examples=[3])
    generation: int | None = Field(default=None, description="Generation of the frames.", examples=[1])
    state: FrameState | None = Field(
        default=None,
        description="State of the frames. Several frames are `complete_with_exclusions` if any has exclusions, or "
        "else `complete` if any has rows.",
        examples=["complete"],
    )
    on_time: int | None = Field(default=None, description="On-time rows that the generation adds.", examples=[0])
    updated: int | None = Field(default=None, description="Updated rows that the generation adds.", examples=[0])
    dropped: int | None = Field(default=None, description="Dropped rows that the generation adds.", examples=[0])
    diverted: int | None = Field(default=None, description="Diverted rows that the generation adds.", examples=[4])
    every: str | None = Field(default=None, description="Declared length of the frames.", examples=["day"])
    offset_ms: int | None = Field(default=None, description="Declared offset of the frames.", examples=[0])
    time_zone: str | None = Field(
        default=None, description="Declared time zone of the frames.", examples=["America/New_York"]
    )
    actor: str | None = Field(default=None, description="Name of the actor's key.", examples=["operations"])
    reason: str | None = Field(
        default=None,
        description="Reason stated by the actor, or reason of a generation that is not the first.",
        examples=["Closed for the winter"],
    )

    @classmethod
    def of(cls, record_id: str, record: Record) -> Self:
        """Return a record with its id. Details that a newer version has written are omitted."""
        members = {"id": record_id, "at_ms": record.at_ms, "kind": record.kind, **record.details}
        if record.kind in MOVEMENTS:
            members.setdefault("watermark", None)
        return cls.model_validate(members)


class HistoryPage(WatermarkState):
    """A page of the history, latest record first."""

    as_of: HistoryRecord | None = Field(
        description="Last movement of the watermark up to the requested time. Null if the job had no watermark, or the "
        "history no longer contains the record."
    )
    kept_from_ms: int | None = Field(description="Processing time of the oldest record kept.", examples=[1356949800000])
    records: list[HistoryRecord] = Field(description="Records, latest first.")
    next: str | None = Field(
        description="Value of `before` for the next page. Null on the last page.", examples=["1357554600000-0"]
    )


async def read_history(
    reader: Reader, job: str, as_of: int | None, from_ms: int, kinds: Collection[str], before: str | None, most: int
) -> HistoryPage:
    """Return a page of the history of a job.

    Args:
        reader: Reader that issues the watermark token.
        job: The job.
        as_of: Latest processing time of records; None for no bound.
        from_ms: Earliest processing time of records.
        kinds: Kinds of records; empty for all kinds.
        before: Cursor: the ``next`` of the previous page; None for the first page.
        most: Number of records per page.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    found = await reader.store.reads.history(job, before, from_ms, as_of, kinds, most + 1)
    return HistoryPage(
        **reader.members(job, found.state),
        as_of=await _movement_in_force(reader, job, as_of),
        kept_from_ms=found.oldest_ms,
        **records_page(found, most),
    )


def records_page(found: HistoryReply, most: int) -> dict[str, Any]:
    """Return the members ``records`` and ``next`` of a page."""
    records = [HistoryRecord.of(*entry) for entry in found.records[:most]]
    return {"records": records, "next": records[-1].id if len(found.records) > most else None}


def grouped(records: Sequence[HistoryRecord]) -> list[list[HistoryRecord]]:
    """Return the records in groups: neighboring movements together, and each other record by itself."""
    groups: list[list[HistoryRecord]] = []
    for record in records:
        if groups and record.kind in MOVEMENTS and groups[-1][-1].kind in MOVEMENTS:
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def id_after(record_id: str) -> str:
    """Return the lowest id after a record. As the cursor ``before``, it selects the record and all earlier ones."""
    at_ms, number = order(record_id)
    return f"{at_ms}-{number + 1}"


async def _movement_in_force(reader: Reader, job: str, at_ms: int | None) -> HistoryRecord | None:
    """Return the last movement up to ``at_ms``, or None if the job has been reset since that movement."""
    history = reader.store.reads.history
    movements = (await history(job, to_ms=at_ms, kinds=MOVEMENTS, most=1)).records
    if not movements:
        return None
    movement = HistoryRecord.of(*movements[0])
    since = await history(job, from_ms=movement.at_ms, to_ms=at_ms, kinds=(Kind.ACTION,), most=RECORDS_KEPT)
    was_reset = any(
        action.details["action"] == "reset" and order(action_id) > order(movement.id)
        for action_id, action in since.records
    )
    return None if was_reset else movement
