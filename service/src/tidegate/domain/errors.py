"""Commands that were refused, as data.

::

    DomainError
    ├── InvalidConfig           a policy, throttle or limit that cannot work
    ├── JobNotFound             the job was never created
    ├── JobExists               a create of a job that exists
    ├── JobDeleted              the job was deleted; a PUT creates a new incarnation
    ├── JobComplete             the job is complete and takes no reports
    ├── RevisionMismatch        the configuration changed since the client read it
    ├── BatchOpen               an end of input while a batch is open
    ├── BatchNotBegun           a report or commit of a batch that this run did not begin
    ├── ReportsMissing          a commit of a batch of which fewer reports are staged than were sent
    ├── BatchForgotten          a replay of a batch whose pinned watermark is no longer kept
    ├── PinnedWatermarkConflict another pinned watermark than the client's
    ├── QueryFenced             a newer run has replaced this one
    ├── CheckpointConflict      a batch of another checkpoint of this query is open
    ├── QueryRetired            the query was retired, or handed over to another
    ├── QueryNotFound           an action on a query without calls and declared substreams
    ├── SubstreamNotFound       an action on a substream that was neither declared nor reported
    ├── SubstreamDone           an action on a substream that is done
    ├── EventTimeMissing        a report of a watermark alone, under a policy that needs event times
    ├── TooManyJobs             one job more than allowed
    ├── TooManySubstreams       one substream more than allowed
    ├── HoldActive              an end of input while a hold is in force
    ├── HoldExists              another hold with the same name
    ├── HoldNotFound            an unknown hold
    └── ClockJumped             the clock of Redis jumped ahead

``code`` is stable and part of the API. ``details`` carries the values that a caller needs, under the names in
``fields``.
"""

from typing import ClassVar


class DomainError(Exception):
    """A refused command; nothing was changed. ``text`` is the message, with the details in braces."""

    code: ClassVar[str]
    text: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: object) -> None:
        self.details = dict(zip(self.fields, values, strict=True))
        super().__init__(self.text.format(**self.details))


class InvalidConfig(DomainError):
    """``field`` is the place in the configuration, ``problem`` a sentence that says what to change."""

    code = "invalid_config"
    text = "{problem}"
    fields = ("field", "problem")


class JobNotFound(DomainError):
    code = "job_not_found"
    text = "The job does not exist; create it with a PUT."


class JobExists(DomainError):
    code = "job_exists"
    text = "The job exists already; to change it, send its ETag in If-Match."


class JobDeleted(DomainError):
    code = "job_deleted"
    text = "The job was deleted; a PUT creates a new incarnation of it."


class JobComplete(DomainError):
    code = "job_complete"
    text = "The job is complete and takes no more input; reopen it (:reopen) to report again."


class RevisionMismatch(DomainError):
    code = "revision_mismatch"
    text = "The job is at revision {revision}: another client changed it; read it again and repeat the change."
    fields = ("revision",)


class BatchOpen(DomainError):
    code = "batch_open"
    text = "Batch {batch_id} of query {query!r} is open; let it commit before completing the job."
    fields = ("query", "batch_id")


class BatchNotBegun(DomainError):
    code = "batch_not_begun"
    text = "This run has not begun batch {batch_id} of query {query!r}; begin it first."
    fields = ("query", "batch_id")


class ReportsMissing(DomainError):
    code = "reports_missing"
    text = (
        "The coordinator lacks reports of {missing} substreams of batch {batch_id} of query {query!r}; send all again."
    )
    fields = ("query", "batch_id", "missing")


class BatchForgotten(DomainError):
    code = "batch_forgotten"
    text = "The pinned watermark of this batch is no longer kept; the latest batch of the query is {latest_batch_id}."
    fields = ("latest_batch_id",)


class PinnedWatermarkConflict(DomainError):
    code = "pinned_watermark_conflict"
    text = "The pinned watermark of the batch is {pinned_watermark} (None: no watermark), not the one that was sent."
    fields = ("pinned_watermark",)


class QueryFenced(DomainError):
    code = "query_fenced"
    text = "Run {current_run_id} of the query has replaced this run; stop this one."
    fields = ("current_run_id",)


class CheckpointConflict(DomainError):
    code = "checkpoint_conflict"
    text = (
        "Batch {open_batch_id} of another checkpoint of this query (query_id {open_query_id}) is open; start the query "
        "on that checkpoint to finish the batch, or give the batch up: retire the query with itself as the successor."
    )
    fields = ("open_batch_id", "open_query_id")


class SubstreamNotFound(DomainError):
    code = "substream_not_found"
    text = 'Query {query!r} ("": reports without batches) has no substreams {substreams}; declare or report them first.'
    fields = ("query", "substreams")


class QueryRetired(DomainError):
    code = "query_retired"
    text = "Query {query!r} was retired, and this run with it; stop this run, or start the query anew."
    fields = ("query",)


class QueryNotFound(DomainError):
    code = "query_not_found"
    text = "The job has no query {query!r}; GET .../queries lists its queries."
    fields = ("query",)


class SubstreamDone(DomainError):
    code = "substream_done"
    text = "These substreams of query {query!r} are done and cannot change: {substreams}."
    fields = ("query", "substreams")


class EventTimeMissing(DomainError):
    code = "event_time_missing"
    text = "The policy of these substreams needs max_event_times, not watermarks alone: {substreams}."
    fields = ("substreams",)


class TooManyJobs(DomainError):
    code = "too_many_jobs"
    text = "There are {limit} jobs, the most allowed; delete some, or raise TIDEGATE_MAX_JOBS."
    fields = ("limit",)


class TooManySubstreams(DomainError):
    code = "too_many_substreams"
    text = (
        "The job would have more than {limit} substreams; name them more coarsely, evict some, or raise "
        "TIDEGATE_MAX_SUBSTREAMS."
    )
    fields = ("limit",)


class HoldActive(DomainError):
    code = "hold_active"
    text = "Hold {hold!r} keeps the watermark at or below {at_most}; release it before completing the job."
    fields = ("hold", "at_most")


class HoldExists(DomainError):
    code = "hold_exists"
    text = "Hold {hold!r} exists with the value {at_most}; release it first, or choose another name."
    fields = ("hold", "at_most")


class HoldNotFound(DomainError):
    code = "hold_not_found"
    text = "The job has no hold {hold!r}; it was released, has expired, or never existed."
    fields = ("hold",)


class ClockJumped(DomainError):
    code = "clock_jumped"
    text = (
        "The clock of Redis jumped ahead by more than max_clock_step_ms, to {now_ms}; the command was not executed. "
        "Correct the clock or, if it is right now, restart the coordinators."
    )
    fields = ("now_ms",)


BY_CODE: dict[str, type[DomainError]] = {cls.code: cls for cls in DomainError.__subclasses__()}
"""The errors by their codes, for a store whose commands run in another process."""
