"""What is done to a job from outside the stream, and why."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tidegate.api.schemas.types import EventTime, FieldError, Id, Names, PositiveMs, Request, Text, equal_lengths

REASON = Field(default="", max_length=1000, description="why; it is kept with the record of the action")


class Action(Request):
    """Why something was done to the whole job."""

    reason: Text = REASON


class Completion(Action):
    """The end of the input, and why it is known.

    `up_to`: the watermark goes there at least. Operators of Spark keep state beyond the last event time (a window, the
    time bound of a join, a timer): name the end of that, so that they give out all they have. A job that is complete
    already moves on if `up_to` is above its watermark.
    """

    up_to: EventTime | None = None


class SubstreamAction(Request):
    """Which substreams, and why. `query` "": those whose reports come without batches."""

    names: Names
    query: Id | Literal[""] = ""
    reason: Text = REASON


class Declaration(SubstreamAction):
    """Substreams that are to hold the watermark from the start.

    `max_event_times`: their highest ones, where a client knows them and the job has lost them (its `state_epoch` has
    changed); null for those of which nothing is known. Of no effect for substreams that have
    shown event times.
    """

    max_event_times: list[EventTime | None] | None = None

    @model_validator(mode="after")
    def _columns(self) -> Self:
        equal_lengths({"max_event_times": self.max_event_times}, len(self.names), "names")
        return self

    @property
    def known_event_times(self) -> dict[str, int]:
        pairs = zip(self.names, self.max_event_times or [], strict=False)
        return {name: time for name, time in pairs if time is not None}


class Restoration(SubstreamAction):
    """Watermarks of substreams, taken over from elsewhere before their events come."""

    watermarks: list[EventTime]

    @model_validator(mode="after")
    def _columns(self) -> Self:
        equal_lengths({"watermarks": self.watermarks}, len(self.names), "names")
        return self

    @property
    def values(self) -> dict[str, int]:
        return dict(zip(self.names, self.watermarks, strict=True))


class Retirement(Request):
    """What becomes of a query's substreams: another query (or itself, on another checkpoint) has them from now on, or
    they are evicted.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {"successor": {"type": "string"}, "evict": {"const": False}}, "required": ["successor"]},
                {"properties": {"successor": {"type": "null"}, "evict": {"const": True}}, "required": ["evict"]},
            ]
        }
    )

    successor: Id | None = None
    evict: bool = False
    reason: Text = REASON

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.successor is None) == (not self.evict):
            raise FieldError("successor", 'name the query that goes on with the substreams, or say "evict": true')
        return self


class HoldRequest(Request):
    """Keeps the watermark at or below a value. `hold` is its name, by which it is released; one is made up without.

    `duration_ms`: when it ends by itself; null: only when it is released.
    """

    at_most: EventTime
    reason: Text = Field(min_length=1, max_length=1000, description="why; shown as the reason that the job is held")
    hold: Id | None = None
    duration_ms: PositiveMs | None = None
