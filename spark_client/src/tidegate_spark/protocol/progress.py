"""The progress of a query, stored beside its checkpoint. The client uses the progress to restore lost state."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.effects import Procedure, Read, Write

_NAME = "progress"


@dataclass(slots=True)
class Progress:
    """The progress of a query.

    Attributes:
        query: Name of the query.
        batch_id: The last batch with an acknowledged commit; None if no commit was acknowledged.
        state_epoch: Epoch of the coordinator's state that includes this progress; None before the first answer. The
            epoch changes when the coordinator loses state.
        incarnation: Incarnation of the job in this state. The number rises when an operator resets or deletes the job.
        max_event_times: The max event time of each substream, over all acknowledged batches.
        watermark_token: The token in the answer to the last commit.
        restoring: Whether the open batch reports the max event times again, because the coordinator has lost a commit.
        job: The job of the query; None until it is stored.
        renamed_from: An earlier name of the query that may still hold the watermark; None if there is none.
        restored_before: The batch after one that the coordinator has, and that an older checkpoint has planned again;
            None if there is none.
    """

    query: str
    batch_id: int | None = None
    state_epoch: str | None = None
    incarnation: int | None = None
    max_event_times: dict[str, int] = field(default_factory=dict)
    watermark_token: str | None = None
    restoring: bool = False
    job: str | None = None
    renamed_from: str | None = None
    restored_before: int | None = None

    @classmethod
    def load(cls, query: str, job: str) -> Procedure[Self]:
        """Read the progress of a query of a job.

        Raises:
            InvalidUsage: If the progress is that of a query of another job.
        """
        progress = cls(**((yield Read(_NAME)) or {"query": query}))
        if progress.job not in (None, job):
            raise InvalidUsage(
                f"This checkpoint belongs to a query of job {progress.job!r}, not {job!r}: its watermarks and event "
                f"times have no meaning in another job. Start the query on a new checkpoint, or connect to job "
                f"{progress.job!r}."
            )
        if progress.query != query:
            # The coordinator has no batches under the new name.
            progress.renamed_from, progress.query = progress.query, query
            progress.batch_id, progress.restoring = None, False
        return progress

    def save(self) -> Procedure[None]:
        """Write the progress."""
        yield Write(_NAME, asdict(self))

    def missing_in(self, answer: Mapping[str, Any]) -> dict[str, int]:
        """Return the max event times if the coordinator has lost them and the job was not reset, else an empty dict."""
        is_known = answer["state_epoch"] == self.state_epoch
        return {} if is_known or self._was_reset(answer) else self.max_event_times

    def follow(self, answer: Mapping[str, Any], is_before_token: bool = False) -> bool:
        """Adopt the state epoch and incarnation of an answer, and return whether one of them has changed.

        If the job was reset, the progress is discarded.

        Args:
            answer: The answer.
            is_before_token: Whether the call had no watermark token. The incarnation of a job that was lost and created
                again is then too low, until a token restores it. A lower incarnation is not adopted, because the
                restored one would look like a reset.
        """
        before = self.state_epoch, self.incarnation
        if answer["state_epoch"] != self.state_epoch and self._was_reset(answer):
            self.batch_id, self.max_event_times, self.watermark_token, self.restoring = None, {}, None, False
        incarnation = answer["incarnation"]
        if is_before_token and self.incarnation is not None:
            incarnation = max(incarnation, self.incarnation)
        self.state_epoch, self.incarnation = answer["state_epoch"], incarnation
        return before != (self.state_epoch, self.incarnation)

    def _was_reset(self, answer: Mapping[str, Any]) -> bool:
        return self.incarnation is not None and bool(answer["incarnation"] > self.incarnation)

    def keep_only(self, substreams: Collection[str]) -> None:
        """Forget the max event times of all other substreams, which start again or have ended."""
        self.max_event_times = {name: time for name, time in self.max_event_times.items() if name in substreams}

    def commit(
        self, batch_id: int, max_event_times: Mapping[str, int], watermark_token: str | None, applied: bool
    ) -> None:
        """Record an acknowledged commit.

        If the coordinator had committed the batch before (``applied`` is false), the reports of this attempt had no
        effect. If they contained max event times to restore, the next batch reports these again.
        """
        self.batch_id, self.watermark_token = batch_id, watermark_token
        self.restoring = self.restoring and not applied
        self._raise(max_event_times)

    def restore_with(self, max_event_times: Mapping[str, int]) -> None:
        """Add max event times that no commit has reported, and report all of them with the next batch."""
        self.restoring = True
        self._raise(max_event_times)

    def _raise(self, max_event_times: Mapping[str, int]) -> None:
        for name, max_event_time in max_event_times.items():
            self.max_event_times[name] = max(max_event_time, self.max_event_times.get(name, max_event_time))

    def is_lost_by(self, previous: int | None, was_open: bool) -> bool:
        """Return whether the coordinator has lost the last acknowledged commit.

        Args:
            previous: The latest batch that the coordinator knew when the batch first began; None if it knew none. The
                batch itself if it was committed before.
            was_open: Whether ``previous`` was open.
        """
        if self.batch_id is None:
            return False
        if previous is None:
            return True
        return previous < self.batch_id or (previous == self.batch_id and was_open)
