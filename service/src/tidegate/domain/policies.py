"""Policies: the rules that derive a substream's watermark from its event times.

A :class:`Policy` has the parameters of a rule. :meth:`Policy.start` returns the state of the rule for one substream.
The rules follow Hazelcast Jet's ``WatermarkPolicies`` step by step (see the conformance traces).

This is the model. In a coordinator, ``store/lua/policies.lua`` does the same.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tidegate.domain.completeness import EDGES, ROW, Sketch
from tidegate.domain.errors import InvalidConfig
from tidegate.domain.values import EXACT_DOUBLE, NumberRange, above, check_declared, effects, highest, parameter


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in processing time and in the observed time of a job, which excludes unattended time."""

    now_ms: int
    observed_ms: int


class Policy:
    """The rule that derives a substream's watermark from its event times.

    ``type`` is the name of the policy in a configuration. If ``follows_clock`` is true, the watermark may advance with
    the clock, and the evaluation of a report caps it. If ``accepts_watermarks`` is true, clients may send watermarks.
    """

    type: ClassVar[str]
    follows_clock: ClassVar[bool] = True
    accepts_watermarks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_declared(self, "policy.")

    @cached_property
    def limit(self) -> str | None:
        """The name of the parameter that overrides the lag; None if the policy has no such parameter."""
        return next(iter(effects(self)), None)

    @property
    def initial_lag(self) -> int | None:
        """The lag of a substream without known delays; None if the policy has no lag."""
        return None

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "PolicyState":
        """Return the state for a substream without events."""
        return PolicyState(numbers, self)

    def resume(self, before: "PolicyState", max_event_time: int | None, at: Moment) -> "PolicyState":
        """Return the state of this policy for a substream that had another policy or other parameters."""
        state = self.start(before.numbers)
        if max_event_time is not None:
            state.observe(max_event_time, at)
        return state


class PolicyState:
    """The state of a policy for one substream: the watermark follows the max event time at the lag in force.

    ``watermark`` never goes back. A second poll at the same time changes nothing. ``lagged`` is the watermark by the
    lag alone: max event time - lag.
    """

    def __init__(self, numbers: NumberRange, policy: Policy) -> None:
        self.numbers = numbers
        self.policy: Any = policy
        self.watermark: int | None = None
        self.lagged: int | None = None

    @property
    def lag(self) -> int | None:
        """The lag in force; None if the policy has no lag."""
        lag: int | None = self.policy.initial_lag
        return lag

    def observe(self, event_time: int, at: Moment) -> None:
        """Apply an event time. It has no effect if the policy has no lag, or if its watermark is below the range."""
        lag = self.lag
        self.lagged = highest(self.lagged, None if lag is None else self.numbers.minus(event_time, lag))
        self.watermark = highest(self.watermark, self.lagged)

    def poll(self, at: Moment) -> None:
        """Apply the time that has passed. Evaluations poll the substreams of :meth:`JobState.polls` only."""

    def report(self, watermark: int) -> None:
        """Apply a watermark from a client.

        The caller checks that the policy accepts watermarks and that this watermark is higher than the last one.
        """
        raise NotImplementedError

    def learn(self, rows: Mapping[int, int], own: Sketch, pool: Sketch, steps: int) -> bool:
        """Apply new delays; return whether the learned lag was discarded. See ``target_completeness``."""
        return False

    def next_change_ms(self, reached: int | None, at: Moment) -> int | None:
        """Return the observed time from which a poll may raise the watermark above ``reached``.

        Returns:
            The next millisecond if the watermark already advances with the clock; None if only new data can raise it.
        """
        return None


# ``limiting_lag``: a fixed lag behind the max event time


@dataclass(frozen=True)
class LimitingLag(Policy):
    """A fixed lag behind the max event time of the substream.

    An event time whose watermark would be below the range of numbers has no effect.
    """

    lag_ms: int = parameter("Distance of the watermark behind the max event time, in milliseconds.", example=1_800_000)
    type: ClassVar[str] = "limiting_lag"
    follows_clock: ClassVar[bool] = False

    @property
    def initial_lag(self) -> int:
        """The parameter ``lag_ms``."""
        return self.lag_ms


# ``limiting_lag_and_delay``: a fixed lag, and a maximum time until the watermark reaches the max event time

SLOTS = 16


class TimestampHistory:
    """Samples of one value over the last ``length_ms``, which return the value of about ``length_ms`` ago.

    ``length_ms`` is divided into 16 slots of equal width; the first sample starts the first slot. The history returns
    the last value of a slot when 15 more slots have closed. At that time, the value is between 15/16 of ``length_ms``
    and ``length_ms`` old. Before ``length_ms`` have passed since the first sample, the history returns None.

    Internal times are in sixteenths of a millisecond, so that the width of a slot is a whole number. Source: Hazelcast
    Jet, ``TimestampHistory``; see the conformance traces.
    """

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.cells: list[int | None] = [None] * (SLOTS + 1)
        self.boundary: int | None = None
        """The end of the newest slot, in sixteenths of a millisecond; None before the first sample."""

    def sample(self, now_ms: int, value: int | None) -> int | None:
        """Record the current value and return the value of ``length_ms`` ago.

        A slot without a sample has the value of the last slot with a sample.
        """
        now, width = now_ms * SLOTS, self.length_ms
        if self.boundary is None:
            self.boundary = now + width
        elif now >= self.boundary:
            closed = (now - self.boundary) // width + 1
            shift = min(closed, len(self.cells))
            self.cells = self.cells[shift:] + [self.cells[-1]] * shift
            # A gap longer than the history restarts the slots; after a shorter gap, the slots continue.
            self.boundary = now + width if closed >= len(self.cells) else self.boundary + closed * width
        self.cells[-1] = value
        return self.cells[0]

    def next_change_ms(self, matters: Callable[[int], bool]) -> int | None:
        """Return the next time at which the returned value changes to one that satisfies ``matters``.

        The time applies if there are no new samples. None: no value of the history satisfies ``matters``.
        """
        if self.boundary is None:
            return None
        for shifts, cell in enumerate(self.cells):
            if shifts and cell is not None and matters(cell):
                return -(-(self.boundary + (shifts - 1) * self.length_ms) // SLOTS)
        return None


@dataclass(frozen=True)
class LimitingLagAndDelay(LimitingLag):
    """A fixed lag and a maximum delay. The watermark is at least the max event time of ``max_delay_ms`` ago."""

    max_delay_ms: int = parameter(
        "Processing time after which the watermark reaches an observed max event time, regardless of the lag.",
        minimum=1,
        example=600_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_lag_and_delay"
    follows_clock: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "DelayState":
        """Return the state for a substream without events."""
        return DelayState(numbers, self)

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> PolicyState:
        """Return the state, with the history of the previous state if ``max_delay_ms`` is the same."""
        state = self.start(before.numbers)
        if isinstance(before, DelayState) and before.history.length_ms == self.max_delay_ms:
            state.history = before.history
        if max_event_time is not None:
            state.observe(max_event_time, at)
        return state


class DelayState(PolicyState):
    """The state of ``limiting_lag_and_delay``."""

    def __init__(self, numbers: NumberRange, policy: LimitingLagAndDelay) -> None:
        super().__init__(numbers, policy)
        self.max_event_time: int | None = None
        self.history = TimestampHistory(policy.max_delay_ms)

    def observe(self, event_time: int, at: Moment) -> None:
        """Apply an event time."""
        self.max_event_time = highest(self.max_event_time, self.numbers.minus(event_time, 0))
        super().observe(event_time, at)
        self.poll(at)

    def poll(self, at: Moment) -> None:
        """Raise the watermark to the max event time of ``max_delay_ms`` ago."""
        self.watermark = highest(self.watermark, self.history.sample(at.observed_ms, self.max_event_time))

    def next_change_ms(self, reached: int | None, at: Moment) -> int | None:
        """Return the observed time from which the history exceeds ``reached``; None if only new data can raise it.

        Before the first sample, return the current observed time.
        """
        if self.history.boundary is None:
            return at.observed_ms
        return self.history.next_change_ms(lambda max_event_time: above(max_event_time, reached))


# ``limiting_lag_and_lull``: a fixed lag, and a watermark that advances with the clock after a lull


@dataclass(frozen=True)
class LimitingLagAndLull(LimitingLag):
    """A fixed lag; after ``max_lull_ms`` without events the watermark advances with the clock.

    The first lull of a substream starts with its first evaluation. A lull gives no watermark to a substream without
    events.
    """

    max_lull_ms: int = parameter(
        "Processing time without events after which the watermark advances with the clock.",
        example=60_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_lag_and_lull"
    follows_clock: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return LullState(numbers, self)


class LullState(PolicyState):
    """The state of ``limiting_lag_and_lull``."""

    def __init__(self, numbers: NumberRange, policy: LimitingLagAndLull) -> None:
        super().__init__(numbers, policy)
        self.deadline_ms: int | None = None

    def observe(self, event_time: int, at: Moment) -> None:
        """Apply an event time, and restart the lull."""
        self.deadline_ms = at.observed_ms + self.policy.max_lull_ms
        super().observe(event_time, at)

    def poll(self, at: Moment) -> None:
        """Advance the watermark by the time since the end of the lull or the last poll, whichever is later."""
        if self.deadline_ms is None:
            self.deadline_ms = at.observed_ms + self.policy.max_lull_ms
        if at.observed_ms > self.deadline_ms:
            if self.watermark is not None:
                self.watermark = self.numbers.plus(self.watermark, at.observed_ms - self.deadline_ms)
            self.deadline_ms = at.observed_ms

    def next_change_ms(self, reached: int | None, at: Moment) -> int | None:
        """Return the observed time at which the watermark passes ``reached``; None before the first watermark."""
        if self.watermark is None or self.deadline_ms is None or reached is None:
            return None
        return max(self.deadline_ms + reached - self.watermark, at.observed_ms + 1)


# ``limiting_timestamp_and_wall_clock_lag``: a fixed lag, and a limit on the lag behind the clock


@dataclass(frozen=True)
class LimitingTimestampAndWallClockLag(Policy):
    """A lag behind the max event time and a lag behind the clock. The higher of the two watermarks applies.

    Event times must be epoch milliseconds. The clock also gives a watermark to a substream without events.
    """

    timestamp_lag_ms: int = parameter("Distance behind the max event time, in milliseconds.", example=1_800_000)
    wall_clock_lag_ms: int = parameter(
        "Maximum distance behind the clock, in milliseconds.",
        example=3_600_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_timestamp_and_wall_clock_lag"

    @property
    def initial_lag(self) -> int:
        """The parameter ``timestamp_lag_ms``."""
        return self.timestamp_lag_ms

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return WallClockState(numbers, self)


class WallClockState(PolicyState):
    """The state of ``limiting_timestamp_and_wall_clock_lag``."""

    def observe(self, event_time: int, at: Moment) -> None:
        """Poll, then apply an event time."""
        self.poll(at)
        super().observe(event_time, at)

    def poll(self, at: Moment) -> None:
        """Raise the watermark to ``wall_clock_lag_ms`` behind the clock."""
        self.watermark = highest(self.watermark, self.numbers.minus(at.now_ms, self.policy.wall_clock_lag_ms))

    def next_change_ms(self, reached: int | None, at: Moment) -> int | None:
        """Return the observed time at which the clock minus ``wall_clock_lag_ms`` passes ``reached``."""
        if reached is None:
            return at.observed_ms
        unattended_ms = at.now_ms - at.observed_ms
        policy: LimitingTimestampAndWallClockLag = self.policy
        return max(reached + policy.wall_clock_lag_ms - unattended_ms, at.observed_ms + 1)


# ``target_completeness``: a lag learned from the delays of rows, for a target share of on-time rows

LOWEST_TARGET, HIGHEST_TARGET = 0.5, 0.999999
ROWS_BEYOND = 10
"""Minimum number of rows beyond a lag that are needed to learn or to discard the lag."""
SURPRISE = 3.0
"""Excess of late rows, in standard deviations, at which a learned lag is discarded."""
MARGIN = 0.5
"""Safety margin of a measured lag, in standard deviations of the number of late rows.

The slow narrowing of the lag is a further margin. If delays are heavy-tailed, twice this margin increases the latency
by a quarter.
"""
MAX_WIDENING = 4
"""Maximum ratio of a lag to the discarded lag that it replaces. The cold-start lag is always allowed.

Without a bound, one row that is years old could set the lag.
"""
NARROWING = 4
"""Divisor of a narrowing step. Each step removes a quarter of the distance to the wanted lag."""
MAX_STEPS = 64
"""Maximum number of narrowing steps in one update."""


def moved_lag(lag: int | None, wanted: int, steps: int) -> int:
    """Return a learned lag (None: not learned yet) after it has moved: it widens at once, and narrows in steps."""
    if lag is None or wanted > lag:
        return wanted
    for _ in range(min(steps, MAX_STEPS)):
        lag -= math.ceil((lag - wanted) / NARROWING)
    return lag


@dataclass(frozen=True)
class TargetCompleteness(Policy):
    """The lowest lag under which a share ``target`` of the rows is on time, learned per substream.

    The lag is ``cold_start_lag_ms`` until ``min_rows`` rows of the substream or the job are measured. By default,
    ``min_rows`` is the number of rows at which the target allows ten late rows. The lag widens immediately. In each
    eighth of the half-life of delays, the lag narrows by a quarter of its distance to the shorter lag. The watermark
    never goes back.

    If significantly more rows are late than the target allows, the learned lag is discarded. Until enough rows are
    measured again, the lag is the longest recent delay. This lag is at most four times the discarded lag or
    ``cold_start_lag_ms``, whichever is higher.

    Raises:
        InvalidConfig: If parameters are outside their ranges or contradict each other.
    """

    target: float = parameter("Share of rows on time.", minimum=LOWEST_TARGET, maximum=HIGHEST_TARGET, example=0.99)
    cold_start_lag_ms: int = parameter("Lag until `min_rows` rows are measured, in milliseconds.", example=3_600_000)
    floor_ms: int = parameter("Minimum lag, in milliseconds.", example=60_000, default=0)
    ceiling_ms: int | None = parameter(
        "Maximum lag, in milliseconds. Null: no bound.", example=86_400_000, default=None
    )
    min_rows: int | None = parameter(
        "Minimum number of measured rows, of the substream or the job, to learn the lag. Null: the number at which the "
        "target allows ten late rows.",
        minimum=1,
        maximum=10**9,
        example=1000,
        default=None,
    )
    type: ClassVar[str] = "target_completeness"
    follows_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Validate the parameters."""
        super().__post_init__()
        if self.ceiling_ms is not None and self.ceiling_ms < self.floor_ms:
            problem = f"ceiling_ms must be floor_ms ({self.floor_ms}) or more; it is {self.ceiling_ms}."
            raise InvalidConfig("policy.ceiling_ms", problem)
        if self.cold_start_lag_ms != self.within(self.cold_start_lag_ms):
            problem = f"cold_start_lag_ms must be from floor_ms to ceiling_ms; it is {self.cold_start_lag_ms}."
            raise InvalidConfig("policy.cold_start_lag_ms", problem)

    @property
    def initial_lag(self) -> int:
        """The parameter ``cold_start_lag_ms``."""
        return self.cold_start_lag_ms

    @property
    def late_share(self) -> float:
        """The share of the rows that may be late."""
        return 1 - self.target

    @property
    def enough(self) -> int:
        """The number of rows from which a lag can be learned."""
        return math.ceil(ROWS_BEYOND / self.late_share) if self.min_rows is None else self.min_rows

    @property
    def window(self) -> int:
        """The number of recent rows over which a learned lag is checked."""
        return max(self.enough, math.ceil(ROWS_BEYOND / self.late_share))

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "TargetState":
        """Return the state for a substream without events."""
        return TargetState(numbers, self)

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> "TargetState":
        """Return the state, with the lag and the recent rows of a previous ``target_completeness`` policy."""
        state = self.start(before.numbers)
        state.max_event_time = max_event_time
        if isinstance(before, TargetState):
            state.learned, state.relearning = before.learned, before.relearning
            state.rows, state.late, state.highest_bucket = before.rows, before.late, before.highest_bucket
        return state

    def wanted_lag(self, own: Sketch, pool: Sketch) -> int | None:
        """Return the lag for the delays of the substream, or of all substreams if the substream has too few rows.

        None: all substreams together have too few rows.
        """
        for sketch in (own, pool):
            if sketch.weight >= self.enough * ROW:
                return self.lag_of(sketch)
        return None

    def lag_of(self, sketch: Sketch) -> int:
        """Return the lag for these delays, even if the sketch has too few rows."""
        beyond = sketch.weight * self.late_share / ROW
        # The rows are a sample, so the true share beyond the lag may be higher.
        return self.within(sketch.lag_for(math.floor(max(beyond - MARGIN * math.sqrt(beyond), 0.0) * ROW)))

    def within(self, lag: int) -> int:
        """Return the lag, limited to the range from floor to ceiling."""
        return max(lag if self.ceiling_ms is None else min(lag, self.ceiling_ms), self.floor_ms)


class TargetState(PolicyState):
    """The state of ``target_completeness``.

    ``learned`` is the learned lag, or None if no lag was learned yet. ``relearning`` is true after the learned lag was
    discarded, until enough rows are measured. ``rows`` is the number of recent rows, and ``late`` is the number of
    recent rows whose delay exceeded the lag. ``highest_bucket`` is the highest bucket of the late rows.
    """

    def __init__(self, numbers: NumberRange, policy: TargetCompleteness) -> None:
        super().__init__(numbers, policy)
        self.max_event_time: int | None = None
        self.learned: int | None = None
        self.relearning = False
        self.rows = self.late = self.highest_bucket = 0

    @property
    def lag(self) -> int:
        """The learned lag, limited to floor and ceiling; the initial lag if no lag was learned."""
        policy: TargetCompleteness = self.policy
        return policy.initial_lag if self.learned is None else policy.within(self.learned)

    def observe(self, event_time: int, at: Moment) -> None:
        """Apply an event time."""
        self.max_event_time = highest(self.max_event_time, event_time)
        self.poll(at)

    def poll(self, at: Moment) -> None:
        """Apply the current lag to the max event time."""
        if self.max_event_time is not None:
            super().observe(self.max_event_time, at)

    def learn(self, rows: Mapping[int, int], own: Sketch, pool: Sketch, steps: int) -> bool:
        """Move the lag towards the lag for these delays; return whether the learned lag was discarded.

        Args:
            rows: The newest rows, by delay bucket. Both sketches already contain them.
            own: The delays of the substream; cleared if the lag is discarded.
            pool: The delays of all substreams.
            steps: Eighths of the half-life since the last call.
        """
        policy: TargetCompleteness = self.policy
        if self._is_surprised(rows):
            longest = min(
                math.floor(EDGES[self.highest_bucket]), max(MAX_WIDENING * self.lag, policy.cold_start_lag_ms)
            )
            self.learned = policy.within(max(self.lag, longest))
            self.relearning = True
            self.rows = self.late = self.highest_bucket = 0
            own.weights.clear()
            return True
        if self.relearning and self.rows < policy.enough:
            return False
        wanted = policy.wanted_lag(own, pool)
        if wanted is None and self.relearning:  # old rows decay, so the sketch may never reach the minimum
            wanted = policy.lag_of(own)
        if wanted is not None:
            before = None if self.learned is None or self.relearning else self.lag
            self.learned, self.relearning = moved_lag(before, wanted, steps), False
        return False

    def _is_surprised(self, rows: Mapping[int, int]) -> bool:
        lag, ceiling = self.lag, self.policy.ceiling_ms
        if self.learned is None:
            return False
        for bucket, count in rows.items():
            self.rows += count
            if count and math.floor(EDGES[bucket]) > lag:
                self.late += count
                self.highest_bucket = max(self.highest_bucket, bucket)
        expected = self.rows * self.policy.late_share
        may_widen = ceiling is None or lag < ceiling
        if may_widen and self.late >= ROWS_BEYOND and self.late > expected + SURPRISE * math.sqrt(expected):
            return True
        if self.rows > 2 * self.policy.window:
            self.rows, self.late, self.highest_bucket = self.rows // 2, self.late // 2, 0
        return False


# ``reported``: clients send the watermark of a substream


@dataclass(frozen=True)
class Reported(Policy):
    """The watermark that the client sends. Event times move only the max event time."""

    type: ClassVar[str] = "reported"
    follows_clock: ClassVar[bool] = False
    accepts_watermarks: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return ReportedState(numbers, self)


class ReportedState(PolicyState):
    """The state of ``reported``."""

    def report(self, watermark: int) -> None:
        """Apply a watermark."""
        self.watermark = self.lagged = watermark


# All policies

POLICIES: tuple[type[Policy], ...] = (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    TargetCompleteness,
    Reported,
)
"""All policies; every other list of policies derives from this one."""
