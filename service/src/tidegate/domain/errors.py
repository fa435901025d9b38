"""Errors of refused commands, as data.

``code`` is the name of the class in snake case. It is stable and part of the API, so a class keeps its name.
``details`` contains the value of each name in ``fields``.
"""

import re
from typing import ClassVar

MAX_LISTED = 20
"""Maximum number of substreams that a message names. A call can refer to 100,000 unknown substreams."""


class DomainError(Exception):
    """Base class of the errors of refused commands. A refused command changes nothing.

    ``text`` is the message, with a placeholder for each detail.
    """

    code: ClassVar[str]
    text: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Derive the code from the name of the class."""
        cls.code = re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__).lower()

    def __init__(self, *values: object) -> None:
        self.details = dict(zip(self.fields, values, strict=True))
        super().__init__(self.text.format(**{name: _shown(value) for name, value in self.details.items()}))


def _shown(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_LISTED:
        return f"{value[:MAX_LISTED]} and {len(value) - MAX_LISTED} more"
    return value


class InvalidConfig(DomainError):
    """Raised when a setting is invalid. ``problem`` is a sentence that says what to change."""

    text = "{problem}"
    fields = ("field", "problem")


class JobNotFound(DomainError):
    """Raised when the job was never created, or was deleted long ago."""

    text = "The job does not exist; create it with a PUT."


class FramesNotDeclared(DomainError):
    """Raised when the configuration of a job declares no frames."""

    text = 'The job declares no frames; set frames in its configuration, for example {{"every": "hour"}}.'


class FrameNotFound(DomainError):
    """Raised when the job has no such frame: it began later, ended earlier, or no longer keeps the record."""

    text = (
        "The job has no frame at this time: the first frame that it keeps starts later, or the job is complete and "
        "ended earlier."
    )


class JobExists(DomainError):
    """Raised when the job to create already exists."""

    text = "The job already exists; to change it, send its ETag in If-Match."


class JobDeleted(DomainError):
    """Raised when the job was deleted. A PUT creates a new incarnation."""

    text = "The job was deleted; a PUT creates a new incarnation of it."


class JobComplete(DomainError):
    """Raised when the job is complete and accepts no reports."""

    text = "The job is complete and accepts no input; reopen it (:reopen) to report again."


class RevisionMismatch(DomainError):
    """Raised when the configuration has changed since the client read it, or belongs to another incarnation."""

    text = (
        "Another client has changed, reset, or deleted and created the job, which is at revision {revision}; read it "
        "again and repeat the change."
    )
    fields = ("revision",)


class BatchOpen(DomainError):
    """Raised when the job cannot complete, because a batch is open."""

    text = "Batch {batch_id} of query {query!r} is open; let it commit before completing the job."
    fields = ("query", "batch_id")


class BatchNotBegun(DomainError):
    """Raised when a run has not begun the batch that it reports or commits."""

    text = "This run has not begun batch {batch_id} of query {query!r}; begin it first."
    fields = ("query", "batch_id")


class ReportsMissing(DomainError):
    """Raised when the store has fewer row counts of a batch than the client sent."""

    text = "The coordinator lacks {missing} row counts of batch {batch_id} of query {query!r}; send all reports again."
    fields = ("query", "batch_id", "missing")


class BatchForgotten(DomainError):
    """Raised when the store no longer keeps the pinned watermark of a replayed batch."""

    text = (
        "The coordinator no longer keeps the pinned watermark of this batch; the latest batch of the query is "
        "{latest_batch_id}. If an older checkpoint was restored, hand the query over to a new name (:hand_over), and "
        "start it under this name on this checkpoint, with another output path."
    )
    fields = ("latest_batch_id",)


class PinnedWatermarkConflict(DomainError):
    """Raised when the client sent a pinned watermark that differs from the one in the store."""

    text = "The pinned watermark of the batch is {pinned_watermark} (None: no watermark); the client sent another one."
    fields = ("pinned_watermark",)


class QueryFenced(DomainError):
    """Raised when a newer run has replaced the calling run."""

    text = "Run {current_run_id} of the query has replaced this run; stop this run."
    fields = ("current_run_id",)


class CheckpointConflict(DomainError):
    """Raised when a batch of another checkpoint of the query is open."""

    text = (
        "Batch {open_batch_id} of another checkpoint of this query (query_id {open_query_id}) is open; start the query "
        "on that checkpoint to finish the batch, or abandon the batch: hand the query over to itself (:hand_over)."
    )
    fields = ("open_batch_id", "open_query_id")


class SubstreamNotFound(DomainError):
    """Raised when a substream was neither declared nor reported."""

    text = 'Query {query!r} ("": reports without batches) has no substreams {substreams}; declare or report them first.'
    fields = ("query", "substreams")


class QueryRetired(DomainError):
    """Raised when the query was retired."""

    text = "Query {query!r} was retired; stop this run, or start a new run of the query."
    fields = ("query",)


class QueryNotFound(DomainError):
    """Raised when the query has made no call and has no declared substreams."""

    text = "The job has no query {query!r}; GET .../queries lists its queries."
    fields = ("query",)


class SubstreamDone(DomainError):
    """Raised when a substream is done and cannot change."""

    text = "These substreams of query {query!r} are done and cannot change: {substreams}."
    fields = ("query", "substreams")


class EventTimeMissing(DomainError):
    """Raised when a report has a watermark without an event time, but the policy needs event times."""

    text = "The policy of substreams {substreams} needs event times; send max_event_times with the watermarks."
    fields = ("substreams",)


class TooManyJobs(DomainError):
    """Raised when a new job would exceed the limit on jobs."""

    text = "The limit of {limit} jobs is reached; delete jobs, or raise TIDEGATE_MAX_JOBS."
    fields = ("limit",)


class TooManySubstreams(DomainError):
    """Raised when the job would exceed its limit on substreams."""

    text = (
        "The job would have more than {limit} substreams; use coarser substreams, evict some, or raise "
        "TIDEGATE_MAX_SUBSTREAMS."
    )
    fields = ("limit",)


class HoldActive(DomainError):
    """Raised when the job cannot complete, because a hold is in force."""

    text = "Hold {hold!r} keeps the watermark at or below {at_most}; release it before completing the job."
    fields = ("hold", "at_most")


class HoldExists(DomainError):
    """Raised when a hold with the same name has another value."""

    text = "Hold {hold!r} exists with the value {at_most}; release it first, or choose another name."
    fields = ("hold", "at_most")


class HoldNotFound(DomainError):
    """Raised when the job has no hold with the given name."""

    text = (
        "The job has no hold {hold!r}: it was released, has expired, or never existed; GET the job to list its holds."
    )
    fields = ("hold",)


class ConsumerNotFound(DomainError):
    """Raised when the job has no consumer with the given name."""

    text = "The job has no consumer {consumer!r}; GET .../consumers lists its consumers."
    fields = ("consumer",)


class ConsumerHeld(DomainError):
    """Raised when another process has the lease of the consumer."""

    text = "Process {owner} works for consumer {consumer!r} until {until_ms}; wait until then, or stop that process."
    fields = ("consumer", "owner", "until_ms")


class ConsumerTakenOver(DomainError):
    """Raised when another process has taken over the consumer since the caller had its lease."""

    text = (
        "Process {owner} has taken over consumer {consumer!r}; take the lease with a PUT without position, and "
        "continue from the position in its answer."
    )
    fields = ("consumer", "owner")


class ConsumerAhead(DomainError):
    """Raised when the position of the consumer is after the one in the call."""

    text = (
        "The position of consumer {consumer!r} is generation {generation} of the frame at {start}, made at {at_ms}, "
        "and moves only forward; send a later position, or forget the consumer to deliver all frames again."
    )
    fields = ("consumer", "at_ms", "start", "generation")


class TooManyConsumers(DomainError):
    """Raised when a new consumer would exceed the limit on the consumers of a job."""

    text = "The job has {limit} consumers, which is the limit; forget those that no program uses."
    fields = ("limit",)


class ClockJumped(DomainError):
    """Raised when the clock of Redis has jumped ahead."""

    text = (
        "The clock of Redis jumped ahead by more than max_clock_step_ms, to {now_ms}; the command was not executed. "
        "Correct the clock; if it is already correct, restart the coordinators."
    )
    fields = ("now_ms",)


class StateTooNew(DomainError):
    """Raised when a newer version of Tidegate has written the state of the job."""

    text = (
        "A newer version of Tidegate has written the state of the job: it has schema {schema}, and this coordinator "
        "reads schemas up to {supported}. Upgrade this coordinator, or call one of the newer version."
    )
    fields = ("schema", "supported")


class StateDamaged(DomainError):
    """Raised when the stored state of the job cannot be read."""

    text = (
        "The stored state of the job cannot be read: its keys in Redis are damaged, or another program has changed "
        "them. Restore a backup, or remove the keys of the job."
    )


UNAVAILABLE = (ClockJumped, StateTooNew)
"""Errors of a call that another coordinator, or the same one later, may answer."""
BY_CODE: dict[str, type[DomainError]] = {cls.code: cls for cls in DomainError.__subclasses__()}
"""Errors by code, for the replies of the functions in Redis."""
