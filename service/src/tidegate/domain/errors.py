"""What can be wrong with a command, as data.

::

    DomainError
    ├── InvalidConfig           a policy, throttle or limit that cannot work
    ├── JobNotFound             no such job was ever created
    ├── JobExists               create, where there is one already
    ├── JobDeleted              the job was deleted; a PUT starts a new incarnation
    ├── JobComplete             the input was declared complete; nothing new may come
    ├── RevisionMismatch        the job was changed by somebody else meanwhile
    ├── BatchOpen               an end of input while a batch is open
    ├── BatchNotBegun           a report or commit for a batch that this run never began
    ├── ReportsMissing          a commit of a batch of which less is staged than was reported
    ├── BatchForgotten          a replay of a batch whose pin is no longer kept
    ├── PinConflict             the client's copy of a pin differs from the coordinator's
    ├── QueryFenced             the run was replaced by a newer one
    ├── CheckpointConflict      another checkpoint of this query has a batch open
    ├── QueryRetired            the query was ended, or handed over to another
    ├── QueryNotFound           an action on a query that never spoke and for which nothing was declared
    ├── SubstreamNotFound       an action on a substream nobody declared or reported
    ├── SubstreamDone           a substream that has ended can be nothing else any more
    ├── EventTimeMissing        a report of a substream whose policy needs its event time
    ├── TooManyJobs             another job, where there are as many as may be
    ├── TooManySubstreams       another substream, where the job has as many as it may
    ├── HoldActive              an end of input while an operator holds the watermark
    ├── HoldExists              another hold under the same name
    ├── HoldNotFound            no such hold
    └── ClockJumped             the store's clock went ahead by more than it may at once

Every refusal leaves the state as it was. ``code`` is stable and part of the API; ``details`` carries the values that
a caller needs to react, under the names of ``fields``.
"""

from typing import ClassVar


class DomainError(Exception):
    """A command that was refused; nothing was changed. ``text`` puts the details into one sentence."""

    code: ClassVar[str]
    text: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: object) -> None:
        self.details = dict(zip(self.fields, values, strict=True))
        super().__init__(self.text.format(**self.details))


class InvalidConfig(DomainError):
    """``field`` is the place in the document, ``problem`` a sentence that says what to change."""

    code = "invalid_config"
    text = "{problem}"
    fields = ("field", "problem")


class JobNotFound(DomainError):
    code = "job_not_found"
    text = "There is no such job; create it with a PUT."


class JobExists(DomainError):
    code = "job_exists"
    text = "The job exists already; to change it, send its ETag in If-Match."


class JobDeleted(DomainError):
    code = "job_deleted"
    text = "The job was deleted; a PUT starts a new incarnation of it."


class JobComplete(DomainError):
    code = "job_complete"
    text = "The job's input was declared complete; nothing new may come, unless the job is reopened (:reopen)."


class RevisionMismatch(DomainError):
    code = "revision_mismatch"
    text = "The job was changed meanwhile (it is at revision {revision}); read it again and repeat the change."
    fields = ("revision",)


class BatchOpen(DomainError):
    code = "batch_open"
    text = "Batch {batch_id} of query {query!r} is open; let it commit before completing the job."
    fields = ("query", "batch_id")


class BatchNotBegun(DomainError):
    code = "batch_not_begun"
    text = "Batch {batch_id} of query {query!r} was never begun by this run of it; begin it first."
    fields = ("query", "batch_id")


class ReportsMissing(DomainError):
    code = "reports_missing"
    text = "Of batch {batch_id} of query {query!r}, reports of {missing} substreams are missing; report all again."
    fields = ("query", "batch_id", "missing")


class BatchForgotten(DomainError):
    code = "batch_forgotten"
    text = "The pin of this batch is no longer kept; the query's latest batch is {latest_batch_id}."
    fields = ("latest_batch_id",)


class PinnedWatermarkConflict(DomainError):
    code = "pinned_watermark_conflict"
    text = "The batch has another pinned watermark than the one sent: {pinned_watermark} (None: no watermark)."
    fields = ("pinned_watermark",)


class QueryFenced(DomainError):
    code = "query_fenced"
    text = "This run of the query was replaced by run {current_run_id}; stop this one."
    fields = ("current_run_id",)


class CheckpointConflict(DomainError):
    code = "checkpoint_conflict"
    text = (
        "The query has batch {open_batch_id} of another checkpoint open (query_id {open_query_id}); "
        "start it on that checkpoint to finish the batch, or give the batch up: retire the query, itself its successor."
    )
    fields = ("open_batch_id", "open_query_id")


class SubstreamNotFound(DomainError):
    code = "substream_not_found"
    text = (
        'Nobody declared or reported these substreams of query {query!r} ("": reports without batches): {substreams}.'
    )
    fields = ("query", "substreams")


class QueryRetired(DomainError):
    code = "query_retired"
    text = "Query {query!r} was retired, and this run of it with it; stop this one, or start the query anew."
    fields = ("query",)


class QueryNotFound(DomainError):
    code = "query_not_found"
    text = "There is no query {query!r} in this job; GET .../queries lists those there are."
    fields = ("query",)


class SubstreamDone(DomainError):
    code = "substream_done"
    text = "These substreams of query {query!r} have ended, for good: {substreams}."
    fields = ("query", "substreams")


class EventTimeMissing(DomainError):
    code = "event_time_missing"
    text = "These substreams are under a policy that needs max_event_times, not watermarks alone: {substreams}."
    fields = ("substreams",)


class TooManyJobs(DomainError):
    code = "too_many_jobs"
    text = "There are {limit} jobs, as many as may be; delete some, or raise TIDEGATE_MAX_JOBS."
    fields = ("limit",)


class TooManySubstreams(DomainError):
    code = "too_many_substreams"
    text = (
        "The job may have {limit} substreams, and would have more; name them more coarsely, evict some, or raise "
        "TIDEGATE_MAX_SUBSTREAMS."
    )
    fields = ("limit",)


class HoldActive(DomainError):
    code = "hold_active"
    text = "Hold {hold!r} keeps the watermark at or below {at_most}; release it before completing the job."
    fields = ("hold", "at_most")


class HoldExists(DomainError):
    code = "hold_exists"
    text = "There is another hold {hold!r}, at {at_most}; release it first, or take another name."
    fields = ("hold", "at_most")


class HoldNotFound(DomainError):
    code = "hold_not_found"
    text = "There is no hold {hold!r}; it was released, has expired, or never was."
    fields = ("hold",)


class ClockJumped(DomainError):
    code = "clock_jumped"
    text = (
        "The clock of Redis went ahead by more than max_clock_step_ms at once, to {now_ms}; nothing is done by it. "
        "Set it right, or, if it is right now, restart the coordinators."
    )
    fields = ("now_ms",)


BY_CODE: dict[str, type[DomainError]] = {cls.code: cls for cls in DomainError.__subclasses__()}
"""The tree by its codes, for a store that learns of a refusal in another process."""
