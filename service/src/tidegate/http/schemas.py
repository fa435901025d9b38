"""Bodies of the calls for reports, batches and heartbeats."""

import re
from collections.abc import Sequence
from operator import gt
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from tidegate.domain.batches import OUTPUTS_KEPT, BeginOptions
from tidegate.domain.completeness import ENTRIES_KEPT, BatchAccounting, LateDisposition, RowCounts, sum_by_hour
from tidegate.domain.job import PinnedWatermark, TableVersion
from tidegate.domain.offsets import BatchOffsets
from tidegate.store.pieces import Pieces, accounting_pieces, direct_pieces, partition_pieces
from tidegate.views.substreams import QUERY_ID
from tidegate.views.types import (
    BatchNumber,
    Column,
    Count,
    DelayCounts,
    DurationMs,
    EventTime,
    FieldError,
    Id,
    Names,
    Offset,
    PartitionNames,
    Request,
    RowsByFrame,
    RowsByHour,
    SomeNames,
    SubstreamsRequest,
    Text,
    Version,
    WaitMs,
    check_equal_lengths,
)
from tidegate.views.watermark import CommandResult, WatermarkState

ROW_COLUMNS = ("on_time", "late", "null_event_time", "updated", "future", "hours")


class RowAccounting(Request):
    """The rows of a batch by row class, in columns with a value for each substream."""

    substreams: Names = Field(description="Names of the substreams.", examples=[["HNL", "ORD"]])
    on_time: Column[Count] = Field(
        description="Rows at or above the pinned watermark. With windows: rows whose windows are all open.",
        examples=[[96, 312]],
    )
    late: Column[Count] = Field(
        description="Rows below the pinned watermark. With windows: rows with a window that no longer accepts rows.",
        examples=[[3, 0]],
    )
    null_event_time: Column[Count] = Field(description="Rows without an event time.", examples=[[0, 0]])
    updated: Column[Count] | None = Field(
        default=None,
        description="Rows with a closed window within its allowed lateness. Such a row changes a written result.",
        examples=[[1, 0]],
    )
    future: Column[Count] | None = Field(
        default=None, description="Rows with an event time too far in the future.", examples=[[0, 0]]
    )
    late_disposition: LateDisposition = Field(
        default="dropped",
        description="What happened to late rows: `dropped`, or `diverted` to a side output.",
        examples=["dropped"],
    )
    hours: Column[RowsByHour | None] | None = Field(
        default=None,
        description="For each substream, tuples of an hour (event time divided by 3,600,000, rounded down), its rows, "
        "its updated rows and its late rows. Null if unknown.",
        examples=[[[[377097, 100, 1, 3]], [[377098, 312, 0, 0]]]],
    )
    all_hours: RowsByHour | None = Field(
        default=None,
        description="Rows of the whole batch by hour, in the form of `hours`. Send them if `hours` lacks some rows.",
        examples=[[[377097, 100, 1, 3], [377098, 312, 0, 0]]],
    )
    frames: RowsByFrame | None = Field(
        default=None,
        description="Rows of the whole batch by frame of the job: tuples of a time in the frame, its rows, the updated "
        "ones among these rows, and the late ones among them. Several tuples may be about the same frame. Null: the "
        "rows are not counted by frame.",
        examples=[[[1357549200000, 100, 1, 3], [1357552800000, 312, 0, 0]]],
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, ROW_COLUMNS, "substreams")
        entries = sum(len(rows or ()) for rows in self.hours or ())
        if entries > ENTRIES_KEPT:
            raise FieldError("hours", f"has {entries} entries; the limit is {ENTRIES_KEPT}")
        self._check_hours()
        self._check_all_hours()
        if not _are_within(self.frames or (), self._total()):
            raise FieldError(
                "frames",
                "has more rows (in total, updated or late) than on_time, updated and late together; a tuple is a time, "
                "all rows, the updated ones among them, and the late ones among them",
            )
        return self

    def _total(self) -> tuple[int, ...]:
        """Return the numbers of on-time, updated and late rows of the batch."""
        return tuple(map(sum, zip(*self._classified(), strict=True))) or (0, 0, 0)

    def _classified(self) -> list[tuple[int, int, int]]:
        """Return the numbers of on-time, updated and late rows of each substream."""
        return [*zip(self.on_time, self.updated or self._zeros(), self.late, strict=True)]

    def _zeros(self) -> list[int]:
        return [0] * len(self.substreams)

    def _check_hours(self) -> None:
        for name, rows, counts in zip(self.substreams, self.hours or (), self._classified(), strict=False):
            if not _are_within(rows or (), counts):
                raise FieldError("hours", f"has more rows of {name} (in total, updated or late) than its counts")

    def _check_all_hours(self) -> None:
        if not _are_within(self.all_hours or (), self._total()):
            raise FieldError("all_hours", "has more rows (in total, updated or late) than the counts")
        if not self.all_hours:
            return
        of_all, none = sum_by_hour(self.all_hours), (0, 0, 0)
        of_substreams = sum_by_hour(row for rows in self.hours or () for row in rows or ())
        for hour, counts in of_substreams.items():
            if any(map(gt, counts, of_all.get(hour, none))):
                raise FieldError("all_hours", f"has fewer rows of hour {hour} than the substreams")

    def accounting(self) -> BatchAccounting:
        """Return the accounting as a domain object."""
        zeros = self._zeros()
        columns = (self.on_time, self.updated or zeros, self.late, self.null_event_time, self.future or zeros)
        counts = tuple(RowCounts(*row) for row in zip(*columns, strict=True))
        hours = tuple(tuple(rows or ()) for rows in self.hours or ())
        return BatchAccounting(
            tuple(self.substreams),
            counts,
            self.late_disposition,
            hours,
            tuple(self.all_hours or ()),
            None if self.frames is None else tuple(self.frames),
        )


def _are_within(hours: Sequence[tuple[int, int, int, int]], counts: tuple[int, ...]) -> bool:
    """Return whether rows by hour are consistent, and do not exceed the counts of on-time, updated and late rows."""
    on_time, updated, late = counts
    return (
        all(rows >= changed + lost for _, rows, changed, lost in hours)
        and sum(rows for _, rows, _, _ in hours) <= on_time + updated + late
        and sum(changed for _, _, changed, _ in hours) <= updated
        and sum(lost for _, _, _, lost in hours) <= late
    )


RUN_ID = Field(description="Id of this start of the query.", examples=["c2f7a9d4-51f0-4c2f-a3de-1b7f60d0a9e1"])
TOKEN = Field(
    default=None,
    max_length=200,
    description="The latest `watermark_token` that the client received.",
    examples=["1.1357552800000.dGhpcyBpcyBhbiBleGFtcGxl"],
)


COLUMNS = ("max_event_times", "min_event_times", "watermarks", "counts", "future_counts", "delays")


class BatchReference(Request):
    """The batch and the partition of a report."""

    query: Id = Field(description="Name of the query.", examples=["departures"])
    query_id: Id = QUERY_ID
    run_id: Id = RUN_ID
    batch_id: BatchNumber = Field(description="Number of the batch.", examples=[41])
    partition: BatchNumber = Field(description="Number of the partition.", examples=[0])


def _present(column: str) -> JsonDict:
    """Return the JSON Schema of an object that has a column."""
    return {"properties": {column: {"type": "array"}}, "required": [column]}


class Report(SubstreamsRequest):
    """Highest event times by substream, in columns of equal length.

    With a batch, the report is staged until the batch is committed. Without a batch, the report takes effect at once.
    Its `counts` and `future_counts` are then ignored, because the coordinator cannot detect repetitions.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [_present("max_event_times"), _present("watermarks")]})

    substreams: Names = Field(description="Names of the substreams.", examples=[["HNL", "ORD"]])
    max_event_times: Column[EventTime | None] | None = Field(
        default=None,
        description="Highest event times. Null if no row has an event time. Optional if `watermarks` are given.",
        examples=[[1357554600000, 1357556400000]],
    )
    min_event_times: Column[EventTime | None] | None = Field(
        default=None,
        description="Lowest event times, for policies that follow the clock. The default is `max_event_times`. A "
        "report without a batch cannot move watermarks that follow the clock past the lowest of these times.",
        examples=[[1357551000000, 1357552800000]],
    )
    watermarks: Column[EventTime | None] | None = Field(
        default=None,
        description="Watermarks of substreams under the policy `reported`. A lower value changes nothing.",
        examples=[[None, None]],
    )
    counts: Column[Count] | None = Field(
        default=None, description="Rows of the partition. A repeated report replaces them.", examples=[[100, 312]]
    )
    future_counts: Column[Count] | None = Field(
        default=None,
        description="Rows with event times too far in the future. A repeated report replaces them.",
        examples=[[0, 0]],
    )
    delays: Column[DelayCounts | None] | None = Field(
        default=None,
        description="Pairs of a delay bucket and its number of rows. A delay is the max event time of the substream "
        "before the batch, minus the event time of the row. With a frame, the end of the row's window replaces its "
        "event time. Bucket 0 contains the rows without delay. Bucket `ceil(log(d) / log(101 / 99)) + 1` contains the "
        "rows with a delay `d`. A repeated report replaces the delays in a batch, and adds to them without a batch.",
        examples=[[[[0, 97], [720, 3]], [[0, 312]]]],
    )
    batch: BatchReference | None = Field(
        default=None, description="Batch of the report. Null for a report without a batch."
    )
    watermark_token: str | None = TOKEN

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, COLUMNS, "substreams")
        if self.max_event_times is None and self.watermarks is None:
            raise FieldError("max_event_times", "is missing; it is optional only if watermarks are given")
        return self

    def _to_pieces(self, query: str) -> Pieces:
        columns: dict[str, Any] = {"max_event_times": self.max_event_times, "watermarks": self.watermarks}
        if self.batch is None:
            return direct_pieces(self.substreams, self.delays, **columns, min_event_times=self.min_event_times)
        columns |= {"rows": self.counts, "future_rows": self.future_counts}
        return partition_pieces(self.batch.query, self.substreams, self.delays, **columns)

    def _empty(self) -> dict[str, Any]:
        return {"substreams": [], **dict.fromkeys(COLUMNS)}


class Output(Request):
    """A table that the query writes."""

    table: Text = Field(min_length=1, max_length=1000, description="Name of the table.", examples=["lake.db.hours"])
    version: Version = Field(
        description="Version of the table: of Delta Lake its number, of Iceberg the id of the snapshot. It is a text, "
        "because most programs that read JSON round numbers above 2^53.",
        examples=["5937117119577207000"],
    )


def _check_outputs(outputs: list[Output]) -> list[Output]:
    if len({each.table for each in outputs}) < len(outputs):
        raise ValueError("a table occurs more than once; send each table once, with its latest version")
    return outputs


class RunReference(Request):
    """The caller: the query's checkpoint and the current run, and what each call may tell about them."""

    query_id: Id = QUERY_ID
    run_id: Id = RUN_ID
    waited_ms: WaitMs = Field(
        default=0,
        description="Time for which this run has waited for the coordinator since its start, in milliseconds. The wait "
        "does not count towards timeouts.",
        examples=[0],
    )
    watermark_token: str | None = TOKEN
    outputs: Annotated[list[Output], AfterValidator(_check_outputs)] = Field(
        default=[],
        max_length=OUTPUTS_KEPT,
        description="Tables that the query writes, with their latest versions. The versions of other tables stay. The "
        "records of frames contain these versions. A repetition of an earlier call, and a heartbeat about an earlier "
        "batch than the latest committed one, change no version.",
    )

    @property
    def table_versions(self) -> list[TableVersion]:
        """The versions of tables as an argument of the command."""
        return [TableVersion(each.table, each.version) for each in self.outputs]


class BeginRequest(RunReference):
    """A request to begin a batch."""

    pinned_watermark: EventTime | None = Field(
        default=None,
        description="Pinned watermark of this batch that the client has stored with its checkpoint. Null if the batch "
        "has no watermark. Omit the member if the client has stored no value.",
        examples=[1357552800000],
    )
    pinned_watermarks_to_keep: int = Field(
        default=100, ge=1, le=100_000, description="Number of batches that can be replayed.", examples=[100]
    )
    input_age_ms: DurationMs | None = Field(
        default=0,
        description="All input that was available this long before the call is in this batch or an earlier batch. "
        "Null if unknown, because the source limits its batches. Idle timeouts depend on this age.",
        examples=[0],
    )
    output_watermark: EventTime | None = Field(
        default=None,
        description="Output watermark of the query: everything that its functions write for earlier event times is "
        "written. Null if nothing is written yet. Omit the member if the query writes all rows of a batch before its "
        "commit. Its output then follows the watermark.",
        examples=[1357549200000],
    )

    @property
    def options(self) -> BeginOptions:
        """The request as the options of the command."""
        is_known = "pinned_watermark" in self.model_fields_set
        known = PinnedWatermark(self.pinned_watermark) if is_known else None
        tells_output = "output_watermark" in self.model_fields_set
        return BeginOptions(
            known,
            self.pinned_watermarks_to_keep,
            self.waited_ms,
            self.input_age_ms,
            tells_output,
            self.output_watermark,
            self.table_versions,
        )


_PARTITION = re.compile(r".+/[^/]+")


class Offsets(Request):
    """The offsets of a batch in the partitions of its source, in columns of equal length."""

    partitions: PartitionNames = Field(
        description="Names of all partitions of the source: the topic and the number.",
        examples=[["landings/0", "landings/1"]],
    )
    ends: Column[Offset] = Field(
        description="Offset after the last one that the batch has read.", examples=[[48210, 9120]]
    )
    starts: Column[Offset | None] | None = Field(
        default=None,
        description="First offset that the batch can have read. If it is above the end of the batch before, records "
        "were skipped, and the history tells it. Null if unknown.",
        examples=[[47010, 9120]],
    )
    latest: Column[Offset | None] | None = Field(
        default=None,
        description="Offset after the last record that the partition had when the batch was planned. Null if unknown.",
        examples=[[59610, 9120]],
    )
    behind_ms: Column[DurationMs | None] | None = Field(
        default=None,
        description="Age of the oldest unread record when the batch was planned, rounded up. Null if unknown.",
        examples=[[180000, 0]],
    )
    open_transactions: PartitionNames = Field(
        default=[], description="Partitions whose unread records belong to an open transaction.", examples=[[]]
    )
    batch_id: BatchNumber | None = Field(
        default=None,
        description="Batch of the offsets. Null for the batch that the call is about. A client may learn the offsets "
        "of a batch after its commit, and tell them with a later one.",
        examples=[None],
    )
    substream_columns: list[Literal["topic", "partition"]] = Field(
        default=[],
        max_length=2,
        json_schema_extra={"uniqueItems": True},
        description="Parts of the names of partitions that are the names of the substreams, such as `topic` and "
        "`partition` for the substream `landings/2`. Then the coordinator compares the partitions with those of the "
        "latest batch of the checkpoint that told its offsets. The substreams of a topic that was deleted and created "
        "again start again without a watermark, as do those that are done and whose partitions return. Those whose "
        "partitions are gone are done, if another one of the source counts. Empty if substreams are not partitions.",
        examples=[["topic", "partition"]],
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, ("ends", "starts", "latest", "behind_ms"), "partitions")
        if len(set(self.substream_columns)) < len(self.substream_columns):
            raise FieldError("substream_columns", "a column occurs twice")
        if self.substream_columns and not all(_PARTITION.fullmatch(name) for name in self.partitions):
            raise FieldError("partitions", "with substream_columns, a name must have a topic and a number: landings/2")
        if unknown := set(self.open_transactions).difference(self.partitions):
            raise FieldError("open_transactions", f"{min(unknown)!r} is not in partitions")
        return self

    @property
    def columns(self) -> BatchOffsets:
        """The offsets as an argument of the command."""
        unknown = [None] * len(self.partitions)
        return BatchOffsets(
            self.partitions,
            unknown if self.starts is None else self.starts,
            self.ends,
            unknown if self.latest is None else self.latest,
            unknown if self.behind_ms is None else self.behind_ms,
            self.open_transactions,
            self.batch_id,
            self.substream_columns,
        )


class CommitRequest(RunReference, SubstreamsRequest):
    """A request to commit a batch."""

    rows: RowAccounting | None = Field(
        default=None, description="Rows of the batch by row class. Null if the client does not count rows."
    )
    reported: Count | None = Field(
        default=None,
        description="Number of reported pairs of partition and substream. If the coordinator has fewer pairs, it "
        "answers 409 `reports_missing`. Then send all reports again.",
        examples=[2],
    )

    caught_up: SomeNames | None = Field(
        default=None,
        description="Substreams whose input, if at least `caught_up_age_ms` old, is in this batch or an earlier batch. "
        "Those that were silent for `idle_timeout_ms` become idle, and the `input_age_ms` of the begin does not count. "
        "Null: the `input_age_ms` counts for all substreams of the query.",
        examples=[["landings/2"]],
    )
    caught_up_age_ms: DurationMs = Field(
        default=0, description="Age of the input of the substreams in `caught_up`.", examples=[250]
    )
    offsets: Offsets | None = Field(
        default=None,
        description="Offsets of the batch in the partitions of its source. Null if the client does not know them.",
    )

    def _to_pieces(self, query: str) -> Pieces:
        return accounting_pieces(query, None if self.rows is None else self.rows.accounting())

    def _empty(self) -> dict[str, Any]:
        return {"rows": None}


class HeartbeatRequest(RunReference):
    """A confirmation that the query was caught up."""

    observed_ms: DurationMs = Field(
        description="Processing time of the coordinator at which the query was caught up. Add the time since the "
        "latest answer to the `now_ms` of that answer.",
        examples=[1357554655000],
    )
    after_batch: BatchNumber | None = Field(
        default=None,
        description="Last batch that this run had finished. Null before the first finished batch. If the coordinator "
        "has committed another batch last, the heartbeat changes nothing.",
        examples=[41],
    )
    caught_up: SomeNames | None = Field(
        default=None,
        description="Substreams that were caught up. Those that were silent for `idle_timeout_ms` become idle. "
        "Null: all substreams of the query.",
        examples=[["landings/2"]],
    )
    offsets: Offsets | None = Field(
        default=None,
        description="Offsets of the batch `after_batch`. Null if its commit has told them, or the client does not know "
        "them.",
    )
    output_watermark: EventTime | None = Field(
        default=None,
        description="Output watermark of the query, as in the begin of a batch. A query that tells it tells it with "
        "each heartbeat.",
        examples=[1357549200000],
    )


UNFINISHED_FRAME = Field(
    description="Start of the first frame that is not finished. Null if the job has no frame yet.",
    examples=[1357552800000],
)


class CommitResult(CommandResult):
    """The result of the commit of a batch."""

    unfinished_frame: int | None = UNFINISHED_FRAME


class BeginResult(WatermarkState):
    """A batch that has begun."""

    pinned_watermark: int | None = Field(
        description="Watermark by which the rows of this batch are classified, in every replay. If null, no row is "
        "late.",
        examples=[1357552800000],
    )
    latest_event_time: int | None = Field(
        description="Latest event time to report. Rows with a later event time are too far in the future. If null, "
        "report all event times.",
        examples=[1357641060000],
    )
    replayed: bool = Field(description="Whether the batch had already begun.", examples=[False])
    joined: bool = Field(
        description="Whether the query joined a job that already has a watermark. Rows of the query below that "
        "watermark are late.",
        examples=[False],
    )
    previous_batch_id: int | None = Field(
        description="Latest batch of this checkpoint before this call, or before the first begin if this call repeats "
        "the begin of an open batch. If the client has committed a later batch, the store has lost state.",
        examples=[40],
    )
    previous_open: bool = Field(description="Whether the previous batch was open.", examples=[False])
    revision: int = Field(description="Revision of the configuration.", examples=[1])
    unfinished_frame: int | None = UNFINISHED_FRAME
