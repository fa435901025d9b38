"""Reports, and the calls of a batch: begin, commit, heartbeat."""

from collections.abc import Sequence
from typing import Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from tidegate.api.schemas.accounting import RowAccounting
from tidegate.domain.state import PinnedWatermark, RowsByDelay
from tidegate.reads.types import (
    BatchNumber,
    Count,
    DelayCounts,
    DurationMs,
    EventTime,
    FieldError,
    Id,
    Names,
    Request,
    WaitMs,
    check_equal_lengths,
)
from tidegate.reads.watermark import WatermarkState

QUERY_ID = Field(description="Id of the query's checkpoint.", examples=["7d1f5c5e-9a0b-4a7e-8f63-0c3f3a1d2b4c"])
RUN_ID = Field(description="Id of this start of the query.", examples=["c2f7a9d4-51f0-4c2f-a3de-1b7f60d0a9e1"])
TOKEN = Field(
    default=None,
    max_length=200,
    description="The latest `watermark_token` that the client received.",
    examples=["1.1357552800000.dGhpcyBpcyBhbiBleGFtcGxl"],
)


class BatchReference(Request):
    """The partition of a batch that reports."""

    query: Id = Field(description="Name of the query.", examples=["departures"])
    query_id: Id = QUERY_ID
    run_id: Id = RUN_ID
    batch_id: BatchNumber = Field(description="Number of the batch.", examples=[41])
    partition: BatchNumber = Field(description="Number of the partition.", examples=[0])


def _present(column: str) -> JsonDict:
    """Return the JSON Schema of an object that has a column."""
    return {"properties": {column: {"type": "array"}}, "required": [column]}


class Report(Request):
    """Highest event times by substream, in columns of equal length.

    With a batch, the report is staged until the batch commits. Without one, it takes effect at once, and `counts` and
    `future_counts` are ignored, because repetitions could not be detected.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [_present("max_event_times"), _present("watermarks")]})

    substreams: Names = Field(description="Names of the substreams.", examples=[["HNL", "ORD"]])
    max_event_times: list[EventTime | None] | None = Field(
        default=None,
        description="Highest event times. Null: no row has an event time. Optional beside `watermarks`.",
        examples=[[1357554600000, 1357556400000]],
    )
    min_event_times: list[EventTime | None] | None = Field(
        default=None,
        description="Lowest event times, for policies that follow the clock. Without a batch, the report cannot push "
        "their watermarks past these times (by default, past `max_event_times`).",
        examples=[[1357551000000, 1357552800000]],
    )
    watermarks: list[EventTime | None] | None = Field(
        default=None,
        description="Watermarks of substreams under the policy `reported`. A lower value changes nothing.",
        examples=[[None, None]],
    )
    counts: list[Count] | None = Field(
        default=None, description="Rows of the partition; a repetition replaces them.", examples=[[100, 312]]
    )
    future_counts: list[Count] | None = Field(
        default=None,
        description="Rows that were left out as too far in the future; a repetition replaces them.",
        examples=[[0, 0]],
    )
    delays: list[DelayCounts | None] | None = Field(
        default=None,
        description="Pairs of a delay bucket and its rows. A delay is the distance of a row behind the max event time "
        "of its substream before the batch; with a frame, the end of the row's window replaces its event time. "
        "Bucket 0 is for rows without delay; a delay `d` is in bucket `ceil(log(d) / log(101 / 99)) + 1`. A repetition "
        "replaces them in a batch, and adds to them without one.",
        examples=[[[[0, 97], [720, 3]], [[0, 312]]]],
    )
    batch: BatchReference | None = Field(default=None, description="Batch of the report. Null: reported without one.")
    watermark_token: str | None = TOKEN

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        columns: dict[str, Sequence[object] | None] = {
            "max_event_times": self.max_event_times,
            "min_event_times": self.min_event_times,
            "watermarks": self.watermarks,
            "counts": self.counts,
            "future_counts": self.future_counts,
            "delays": self.delays,
        }
        check_equal_lengths(columns, len(self.substreams), "substreams")
        if self.max_event_times is None and self.watermarks is None:
            raise FieldError("max_event_times", "is missing; it is optional only beside watermarks")
        return self

    def column(self, values: Sequence[int | None] | None) -> dict[str, int]:
        """Return the values of a column that are not null, by substream."""
        pairs = zip(self.substreams, values or [], strict=False)
        return {name: value for name, value in pairs if value is not None}

    def delayed_rows(self) -> dict[str, RowsByDelay]:
        """Return the rows by delay of substreams that have any."""
        pairs = zip(self.substreams, self.delays or [], strict=False)
        return {name: tuple(rows) for name, rows in pairs if rows}


class RunReference(Request):
    """The caller of a batch: the query's checkpoint and the current run."""

    query_id: Id = QUERY_ID
    run_id: Id = RUN_ID
    waited_ms: WaitMs = Field(
        default=0,
        description="Time for which this run has waited for the coordinator since its start, in milliseconds. It does "
        "not count as silence.",
        examples=[0],
    )
    watermark_token: str | None = TOKEN


class BeginRequest(RunReference):
    """The begin of a batch."""

    pinned_watermark: EventTime | None = Field(
        default=None,
        description="Pinned watermark that the client keeps beside its checkpoint; null for no watermark. Leave it out "
        "if the client keeps none.",
        examples=[1357552800000],
    )
    pinned_watermarks_to_keep: int = Field(
        default=100, ge=1, le=100_000, description="Number of batches that can be replayed.", examples=[100]
    )
    input_age_ms: DurationMs | None = Field(
        default=0,
        description="All input that was available this long before the call is in this batch or an earlier one. Null: "
        "not known, because the source limits its batches. Idle timeouts depend on it.",
        examples=[0],
    )

    @property
    def known_pinned_watermark(self) -> PinnedWatermark | None:
        """The pinned watermark of the client, or None if it was left out."""
        return PinnedWatermark(self.pinned_watermark) if "pinned_watermark" in self.model_fields_set else None


class CommitRequest(RunReference):
    """The commit of a batch."""

    rows: RowAccounting | None = Field(
        default=None, description="Rows of the batch by row class. Null: the client does not count them."
    )
    reported: Count | None = Field(
        default=None,
        description="Number of pairs of partition and substream that were reported. If the coordinator has fewer, it "
        "answers 409 `reports_missing`: send all reports again.",
        examples=[2],
    )


class HeartbeatRequest(RunReference):
    """A confirmation that the query has no new data."""

    observed_ms: DurationMs = Field(
        description="Processing time of the coordinator at which the query had no new data: the `now_ms` of its latest "
        "answer, plus the time since.",
        examples=[1357554655000],
    )
    after_batch: BatchNumber | None = Field(
        default=None,
        description="Last batch that this run finished. If the coordinator has a later one, the heartbeat changes "
        "nothing. Null: no batch was finished.",
        examples=[41],
    )


class BeginResult(WatermarkState):
    """A batch that began."""

    pinned_watermark: int | None = Field(
        description="Watermark by which the rows of this batch are classified, in every replay. Null: no row is late.",
        examples=[1357552800000],
    )
    latest_event_time: int | None = Field(
        description="Rows with a later event time are too far in the future: do not report them. Null: no bound.",
        examples=[1357641060000],
    )
    replayed: bool = Field(description="Whether the batch began before.", examples=[False])
    joined: bool = Field(
        description="Whether the query joined a job that already has a watermark. Its earlier rows are late.",
        examples=[False],
    )
    previous_batch_id: int | None = Field(
        description="Latest batch of this checkpoint before this call. If the client has committed a later one, the "
        "store has lost state.",
        examples=[40],
    )
    previous_open: bool = Field(description="Whether that batch was open.", examples=[False])
    revision: int = Field(description="Revision of the configuration.", examples=[1])
