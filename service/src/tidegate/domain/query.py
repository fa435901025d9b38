"""One Spark query: which run of it is current, its batches, and what it is known to have taken in."""

from dataclasses import dataclass, field

from tidegate.domain.errors import (
    BatchForgotten,
    BatchNotBegun,
    CheckpointConflict,
    PinnedWatermarkConflict,
    QueryFenced,
    QueryRetired,
)

DelayedRows = tuple[tuple[int, int], ...]
"""How many rows came in which bucket of delays: see :mod:`tidegate.domain.sketch`."""

PINNED_WATERMARKS_KEPT = 100
"""How many pins a query keeps at least: Spark's default ``minBatchesToRetain``."""


@dataclass(frozen=True, slots=True)
class Run:
    """Who speaks: a query by its stable name, the checkpoint it runs on, and this start of it."""

    query: str
    query_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PinnedWatermark:
    """A pin that the client found beside its checkpoint: ``value`` may be None, "no watermark yet"."""

    value: int | None


@dataclass(slots=True)
class QueryState:
    """A batch is *open* from its begin to its commit; at most one per query is.

    ``unattended_ms`` is what its runs have spent waiting for a coordinator that did not answer: time in which they
    observed
    nothing. ``idle_clock_ms``, and the last events of its substreams, are in *observed* time, which leaves it out.
    ``begun_observed_ms`` is in that of the job; ``begun_merged`` is where C would have been without a throttle.
    ``released``: the open batch no longer holds the emitted watermark.
    ``retired``: ended for good; only another run may bring it back, as a new one. ``taken_in_ms``: with the open batch,
    all that was there by then has been taken in; None: that is not known.
    """

    query_id: str
    run_id: str
    last_contact_ms: int
    fenced: list[str] = field(default_factory=list)
    latest: int | None = None
    open: bool = False
    begun_ms: int | None = None
    begun_observed_ms: int = 0
    begun_by: str | None = None
    begun_merged: int | None = None
    taken_in_ms: int | None = None
    released: bool = False
    retired: bool = False
    idle_clock_ms: int | None = None
    waited_ms: int = 0
    unattended_ms: int = 0
    pinned_watermarks: dict[int, int | None] = field(default_factory=dict)
    staged: dict[str, int] = field(default_factory=dict)
    staged_watermarks: dict[str, int] = field(default_factory=dict)
    staged_counts: dict[tuple[int, str], int] = field(default_factory=dict)
    staged_future: dict[tuple[int, str], int] = field(default_factory=dict)
    staged_delays: dict[tuple[int, str], DelayedRows] = field(default_factory=dict)

    def check_run(self, run: Run) -> None:
        """:raises QueryFenced, QueryRetired: when a newer run has taken this one's place, or the query was ended."""
        if self.retired and run.run_id in (*self.fenced, self.run_id):
            raise QueryRetired(run.query)
        if run.run_id in self.fenced:
            raise QueryFenced(self.run_id)

    def check_speaker(self, run: Run, batch_id: int) -> None:
        """For what belongs to a batch: it must have begun, and the speaker be the run that began the latest one.

        :raises QueryFenced: for any run but the current one.
        :raises BatchNotBegun: for a batch after the latest, or of another checkpoint or run.
        """
        self.check_run(run)
        begun = self.latest is not None and batch_id <= self.latest
        if not begun or (run.query_id, run.run_id) != (self.query_id, self.begun_by):
            raise BatchNotBegun(run.query, batch_id)

    def check_checkpoint(self, run: Run) -> None:
        """:raises CheckpointConflict: when another checkpoint of this query left a batch open."""
        if run.query_id != self.query_id and self.open:
            raise CheckpointConflict(self.latest, self.query_id)

    def stored_pinned_watermark(self, batch_id: int, known: PinnedWatermark | None) -> int | None:
        """The pin of a batch that was begun before.

        :raises BatchForgotten: when it is older than the pins that are kept.
        :raises PinConflict: when the client holds another.
        """
        if batch_id not in self.pinned_watermarks:
            raise BatchForgotten(self.latest)
        pinned_watermark = self.pinned_watermarks[batch_id]
        if known is not None and known.value != pinned_watermark:
            raise PinnedWatermarkConflict(pinned_watermark)
        return pinned_watermark

    def enter(self, run_id: str, now_ms: int) -> str | None:
        """Makes this run the current one; the one before is fenced from now on, and returned."""
        self.last_contact_ms, self.retired = now_ms, False
        if run_id == self.run_id:
            return None
        before = self.run_id
        self.run_id, self.waited_ms = run_id, 0
        if not before:  # it was retired before it ever came
            return None
        self.fenced = [*self.fenced, before][-PINNED_WATERMARKS_KEPT:]
        return before

    def give_up(self) -> None:
        """The open batch, if there is one, is as if it had never begun; only its pin is kept, for it may begin again.

        The query is retired with it, so that the current run does not go on.
        """
        if self.open and self.latest is not None:
            self.latest = self.latest - 1 if self.latest else None
        self.open, self.released, self.begun_ms, self.retired = False, False, None, True
        self.unstage()

    def move_to(self, query_id: str) -> None:
        """A batch is begun on this checkpoint. Another one's batches, none of which is open, are forgotten."""
        if query_id != self.query_id:
            self.query_id = query_id
            self.latest, self.open, self.begun_ms = None, False, None
            self.pinned_watermarks.clear()
            self.unstage()

    def taken_over_by(self, run_id: str) -> None:
        """The latest batch is begun by this run; what another staged for it goes."""
        if self.begun_by != run_id:
            self.begun_by = run_id
            self.unstage()

    def wait(self, waited_ms: int) -> None:
        """Takes in how long the current run has waited for the coordinator, from its start on."""
        self.unattended_ms += max(0, waited_ms - self.waited_ms)
        self.waited_ms = max(waited_ms, self.waited_ms)

    def observed(self, now_ms: int) -> int:
        """``now_ms`` in observed time, which does not go back when a loss becomes known later."""
        observed_ms = now_ms - self.unattended_ms
        return observed_ms if self.idle_clock_ms is None else max(observed_ms, self.idle_clock_ms)

    def observe_until(self, time_ms: int) -> None:
        """Everything that was there at ``time_ms`` has been taken in."""
        observed_ms = time_ms - self.unattended_ms
        self.idle_clock_ms = observed_ms if self.idle_clock_ms is None else max(self.idle_clock_ms, observed_ms)

    def open_batch(
        self,
        batch_id: int,
        pinned_watermark: int | None,
        merged: int | None,
        now_ms: int,
        observed_ms: int,
        taken_in_ms: int | None,
        keep: int,
    ) -> None:
        self.latest, self.open, self.begun_ms, self.begun_by = batch_id, True, now_ms, self.run_id
        self.begun_observed_ms, self.taken_in_ms, self.released = observed_ms, taken_in_ms, False
        self.begun_merged = merged
        self.pinned_watermarks[batch_id] = pinned_watermark
        self.unstage()
        for old in [kept for kept in self.pinned_watermarks if kept <= batch_id - max(keep, PINNED_WATERMARKS_KEPT)]:
            del self.pinned_watermarks[old]

    def stage(
        self,
        partition: int,
        max_event_times: dict[str, int],
        watermarks: dict[str, int],
        counts: dict[str, int],
        future: dict[str, int],
        delays: dict[str, DelayedRows],
    ) -> None:
        """Merges what one partition saw of the open batch: extremes are merged, its counts and delays replaced."""
        for staged, seen in ((self.staged, max_event_times), (self.staged_watermarks, watermarks)):
            for name, value in seen.items():
                staged[name] = max(value, staged.get(name, value))
        for name, count in counts.items():
            self.staged_counts[partition, name] = count
        for name, count in future.items():
            self.staged_future[partition, name] = count
        for name, rows in delays.items():
            self.staged_delays[partition, name] = rows

    def unstage(self) -> None:
        self.staged.clear()
        self.staged_watermarks.clear()
        self.staged_counts.clear()
        self.staged_future.clear()
        self.staged_delays.clear()
