"""Policies: what a substream's watermark is, given the event times seen in it and the time that passes.

A :class:`Policy` is the rule, with its numbers; :meth:`~Policy.start` gives the state in which it follows one
substream. The rules are those of Hazelcast Jet's ``WatermarkPolicies``, to the step (see the conformance traces). A
watermark never goes back; asking twice at one moment gives the same answer and changes nothing. Times are in the job's
unit.

::

    limiting_lag                             top - lag
    limiting_lag_and_delay                   that, or the top of max_delay_ms ago
    limiting_lag_and_lull                    that, and the clock's pace once nothing came for max_lull_ms
    limiting_timestamp_and_wall_clock_lag    that, or the clock - wall_clock_lag
    target_completeness                      top - lag, the lag being learnt from the delays of rows
    reported                                 what the client says
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.history import History
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, highest
from tidegate.domain.sketch import EDGES, ROW, Sketch


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of processing time: by the clock, and in the job's observed time, which leaves out what nobody saw."""

    now_ms: int
    observed_ms: int


class PolicyState:
    """How a policy sees one substream. ``lagged`` is what its lag alone would give: top - lag."""

    def __init__(self, numbers: NumberRange) -> None:
        self.numbers = numbers
        self.watermark: int | None = None
        self.lagged: int | None = None

    def event(self, time: int, at: Moment) -> None:
        """An event with this event time was seen."""
        raise NotImplementedError

    def poll(self, at: Moment) -> None:
        """Time has passed, and the substream counts."""

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        """From when on, in observed time, a poll may give more than ``reading``; None if time alone never brings that.

        What changes all the time does so from the next millisecond on.
        """
        return None

    def _lag(self, time: int, lag: int) -> None:
        self.lagged = highest(self.lagged, self.numbers.minus(time, lag))
        self.watermark = highest(self.watermark, self.lagged)


class Policy(Protocol):
    """A rule. ``limit`` names what in it overrides the lag; None where nothing does.

    ``follows_clock``: its watermark moves with time, so a report must be kept from making itself late.
    """

    follows_clock: ClassVar[bool]
    limit: ClassVar[str | None]

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState: ...

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> PolicyState:
        """The state in which this rule takes over from another (or from itself, with other numbers)."""
        ...


class _Rule:
    follows_clock: ClassVar[bool] = True
    limit: ClassVar[str | None] = None

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        raise NotImplementedError

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> PolicyState:
        state = self.start(before.numbers)
        if max_event_time is not None:
            state.event(max_event_time, at)
        return state


def _not_negative(field: str, value: int, lowest: int = 0) -> None:
    if value < lowest:
        raise InvalidConfig(f"policy.{field}", f"{field} must be {lowest} or more; it is {value}.")


@dataclass(frozen=True)
class LimitingLag(_Rule):
    """Fixed lag: the watermark trails the top by ``lag``. It never reads the clock.

    An event so far below zero that its watermark would leave the range of numbers has no say.

    :raises InvalidConfig: for a negative lag.
    """

    lag: int
    follows_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _not_negative("lag_ms", self.lag)

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return _LagState(numbers, self.lag)


class _LagState(PolicyState):
    def __init__(self, numbers: NumberRange, lag: int) -> None:
        super().__init__(numbers)
        self.lag = lag

    def event(self, time: int, at: Moment) -> None:
        self._lag(time, self.lag)


@dataclass(frozen=True)
class LimitingLagAndDelay(_Rule):
    """As fixed lag, and what was the top ``max_delay_ms`` ago is complete by now.

    It assumes that no event is seen more than that later than one with a higher event time.

    :raises InvalidConfig: for a negative lag or a delay below 1 ms.
    """

    lag: int
    max_delay_ms: int
    limit: ClassVar[str | None] = "max_delay_ms"

    def __post_init__(self) -> None:
        _not_negative("lag_ms", self.lag)
        _not_negative("max_delay_ms", self.max_delay_ms, 1)

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return _DelayState(numbers, self.lag, self.max_delay_ms)

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> PolicyState:
        state = _DelayState(before.numbers, self.lag, self.max_delay_ms)
        if isinstance(before, _DelayState) and before.history.length_ms == self.max_delay_ms:
            state.history = before.history
        if max_event_time is not None:
            state.event(max_event_time, at)
        return state


class _DelayState(PolicyState):
    def __init__(self, numbers: NumberRange, lag: int, max_delay_ms: int) -> None:
        super().__init__(numbers)
        self.lag = lag
        self.max_event_time: int | None = None
        self.history = History(max_delay_ms)

    def event(self, time: int, at: Moment) -> None:
        self.max_event_time = highest(self.max_event_time, self.numbers.minus(time, 0))
        self._lag(time, self.lag)
        self.poll(at)

    def poll(self, at: Moment) -> None:
        self.watermark = highest(self.watermark, self.history.sample(at.observed_ms, self.max_event_time))

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        if self.history.boundary is None:
            return at.observed_ms
        return self.history.next_change_ms(lambda max_event_time: above(max_event_time, reading))


@dataclass(frozen=True)
class LimitingLagAndLull(_Rule):
    """As fixed lag, and once no event came for ``max_lull_ms`` the watermark moves on with the clock.

    Lull time counts from when it is looked at; a substream that never saw an event never gets a watermark by it.

    :raises InvalidConfig: for a negative lag or lull.
    """

    lag: int
    max_lull_ms: int
    limit: ClassVar[str | None] = "max_lull_ms"

    def __post_init__(self) -> None:
        _not_negative("lag_ms", self.lag)
        _not_negative("max_lull_ms", self.max_lull_ms)

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return _LullState(numbers, self.lag, self.max_lull_ms)


class _LullState(PolicyState):
    def __init__(self, numbers: NumberRange, lag: int, max_lull_ms: int) -> None:
        super().__init__(numbers)
        self.lag, self.max_lull_ms = lag, max_lull_ms
        self.deadline_ms: int | None = None

    def event(self, time: int, at: Moment) -> None:
        self.deadline_ms = at.observed_ms + self.max_lull_ms
        self._lag(time, self.lag)

    def poll(self, at: Moment) -> None:
        if self.deadline_ms is None:
            self.deadline_ms = at.observed_ms + self.max_lull_ms
        if at.observed_ms > self.deadline_ms:
            if self.watermark is not None:
                self.watermark = self.numbers.plus(self.watermark, at.observed_ms - self.deadline_ms)
            self.deadline_ms = at.observed_ms

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        if self.watermark is None or self.deadline_ms is None or reading is None:
            return None
        return max(self.deadline_ms + reading - self.watermark, at.observed_ms + 1)


@dataclass(frozen=True)
class LimitingTimestampAndWallClockLag(_Rule):
    """As fixed lag by ``timestamp_lag``, and never further behind the clock than ``wall_clock_lag``.

    It assumes event times that are epoch milliseconds. There is a watermark without any event.

    :raises InvalidConfig: for a negative lag.
    """

    timestamp_lag: int
    wall_clock_lag: int
    limit: ClassVar[str | None] = "wall_clock_lag_ms"

    def __post_init__(self) -> None:
        _not_negative("timestamp_lag_ms", self.timestamp_lag)
        _not_negative("wall_clock_lag_ms", self.wall_clock_lag)

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return _WallClockState(numbers, self.timestamp_lag, self.wall_clock_lag)


class _WallClockState(PolicyState):
    def __init__(self, numbers: NumberRange, timestamp_lag: int, wall_clock_lag: int) -> None:
        super().__init__(numbers)
        self.timestamp_lag, self.wall_clock_lag = timestamp_lag, wall_clock_lag

    def event(self, time: int, at: Moment) -> None:
        self.poll(at)
        self._lag(time, self.timestamp_lag)

    def poll(self, at: Moment) -> None:
        self.watermark = highest(self.watermark, self.numbers.minus(at.now_ms, self.wall_clock_lag))

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        if reading is None:
            return at.observed_ms
        unattended_ms = at.now_ms - at.observed_ms
        return max(reading + self.wall_clock_lag - unattended_ms, at.observed_ms + 1)


@dataclass(frozen=True)
class TargetCompleteness(_Rule):
    """The least lag under which, of the rows seen, a share of ``target`` would have been on time: learnt, by substream,
    from how far rows come behind its top.

    It is within ``floor`` and ``ceiling`` (None: there is none), and ``cold_start`` until so many rows were seen of the
    substream, or of the job, as ``min_rows`` says: by default as many as have ten beyond the target. It widens at once,
    and tightens by a quarter of the way at each eighth of the half-life by which delays fade. Where the watermark is by
    then, it stays. When clearly more rows come beyond the lag than the target leaves to be late, what was learnt no
    longer holds: the lag is then the longest delay of late, or four times what it was, until enough rows came since.

    :raises InvalidConfig: for a target that is no share below 1, and for lags or numbers of rows that cannot be.
    """

    target: float
    cold_start: int
    floor: int = 0
    ceiling: int | None = None
    min_rows: int | None = None
    follows_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not LOWEST_TARGET <= self.target <= HIGHEST_TARGET:
            raise InvalidConfig(
                "policy.target", f"target must be from {LOWEST_TARGET} to {HIGHEST_TARGET}; it is {self.target}."
            )
        _not_negative("floor_ms", self.floor)
        if self.ceiling is not None:
            _not_negative("ceiling_ms", self.ceiling, self.floor)
        _not_negative("cold_start_lag_ms", self.cold_start, self.floor)
        if self.ceiling is not None and self.cold_start > self.ceiling:
            raise InvalidConfig(
                "policy.cold_start_lag_ms", f"cold_start_lag_ms must be within ceiling_ms, {self.ceiling}."
            )
        if self.min_rows is not None:
            _not_negative("min_rows", self.min_rows, 1)

    @property
    def late_share(self) -> float:
        """The share of the rows that may be late."""
        return 1 - self.target

    @property
    def enough(self) -> int:
        """How many rows must have been seen, so that a lag can be learnt from them."""
        return math.ceil(SEEN_BEYOND / self.late_share) if self.min_rows is None else self.min_rows

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "TargetState":
        return TargetState(numbers, self)

    def resume(self, before: PolicyState, max_event_time: int | None, at: Moment) -> "TargetState":
        state = self.start(before.numbers)
        state.max_event_time = max_event_time
        if isinstance(before, TargetState):
            state.learnt, state.relearning = before.learnt, before.relearning
            state.rows, state.late, state.highest = before.rows, before.late, before.highest
        return state

    @property
    def window(self) -> int:
        """Over the last so many rows, or twice as many, it is watched whether what was learnt still holds."""
        return max(self.enough, math.ceil(SEEN_BEYOND / self.late_share))

    def wanted(self, own: Sketch, pool: Sketch) -> int | None:
        """The lag that delays speak for: those of the substream, or of all while it has too few; None: not enough."""
        for seen in (own, pool):
            if seen.weight >= self.enough * ROW:
                return self.lag_by(seen)
        return None

    def lag_by(self, seen: Sketch) -> int:
        """The lag that these delays speak for, however few."""
        beyond = seen.weight * self.late_share / ROW
        # What was seen is a sample: the true share beyond the lag may be higher.
        return self.within(seen.lag_for(math.floor(max(beyond - MARGIN * math.sqrt(beyond), 0.0) * ROW)))

    def within(self, lag: int) -> int:
        """The lag that is nearest to this one between floor and ceiling."""
        return max(lag if self.ceiling is None else min(lag, self.ceiling), self.floor)


LOWEST_TARGET, HIGHEST_TARGET = 0.5, 0.999999
SEEN_BEYOND = 10
"""A quantile is learnt once so many rows are to be expected beyond it, and not doubted before so many are."""
SURPRISE = 3.0
"""It no longer holds when, of the last rows, more than expected are beyond it by so many standard deviations."""
MARGIN = 0.5
"""How many standard deviations of the number of rows beyond the lag it is on the safe side by. What tightens slowly is
on that side anyway: with twice as much, heavy tails cost a quarter more latency than they need to.
"""
MOST_WIDENING = 4
"""So many times wider, or as wide as for a cold start, is a lag at the most when what was learnt no longer holds: the
longest of a few delays may be that of a row which is years old.
"""
TIGHTENING = 4
"""By one part in so many of the way to the wanted lag, a lag tightens at a step."""
STEPS_AT_ONCE = 64
"""After so many steps it is there."""


class TargetState(PolicyState):
    """``learnt``: the lag that was learnt, None: none yet. ``relearning``: it no longer held, and too few rows came
    since to learn another. ``rows``, ``late``: of the last ones, how many there were, and how many were beyond the lag,
    up to the bucket ``highest``.
    """

    def __init__(self, numbers: NumberRange, policy: TargetCompleteness) -> None:
        super().__init__(numbers)
        self.policy = policy
        self.max_event_time: int | None = None
        self.learnt: int | None = None
        self.relearning = False
        self.rows = self.late = self.highest = 0

    @property
    def lag(self) -> int:
        """The lag in force."""
        return self.policy.cold_start if self.learnt is None else self.policy.within(self.learnt)

    def event(self, time: int, at: Moment) -> None:
        self.max_event_time = highest(self.max_event_time, time)
        self.poll(at)

    def poll(self, at: Moment) -> None:
        if self.max_event_time is not None:
            self._lag(self.max_event_time, self.lag)

    def learn(self, rows: Mapping[int, int], own: Sketch, pool: Sketch, steps: int) -> bool:
        """Moves the lag to where delays speak for it. ``rows`` came last, by bucket, and are in the sketches of all: of
        the substream's ``own``, and of the ``pool``. ``steps`` have passed since it was moved last.

        Returns whether what was learnt no longer holds; then it has been forgotten, in ``own``, too.
        """
        if self._is_surprised(rows):
            longest = min(math.floor(EDGES[self.highest]), max(MOST_WIDENING * self.lag, self.policy.cold_start))
            self.learnt = self.policy.within(max(self.lag, longest))
            self.relearning = True
            self.rows = self.late = self.highest = 0
            own.weights.clear()
            return True
        if self.relearning and self.rows < self.policy.enough:
            return False
        wanted = self.policy.wanted(own, pool)
        if wanted is None and self.relearning:  # there will never be more, for what is old fades
            wanted = self.policy.lag_by(own)
        if wanted is None:
            return False
        if self.learnt is None or self.relearning or wanted > self.lag:
            self.learnt, self.relearning = wanted, False
            return False
        lag = self.lag
        for _ in range(min(steps, STEPS_AT_ONCE)):
            lag -= math.ceil((lag - wanted) / TIGHTENING)
        self.learnt = lag
        return False

    def _is_surprised(self, rows: Mapping[int, int]) -> bool:
        lag, ceiling = self.lag, self.policy.ceiling
        if self.learnt is None:
            return False
        for bucket, count in rows.items():
            self.rows += count
            if count and math.floor(EDGES[bucket]) > lag:
                self.late += count
                self.highest = max(self.highest, bucket)
        expected = self.rows * self.policy.late_share
        may_widen = ceiling is None or lag < ceiling
        if may_widen and self.late >= SEEN_BEYOND and self.late > expected + SURPRISE * math.sqrt(expected):
            return True
        if self.rows > 2 * self.policy.window:
            self.rows, self.late, self.highest = self.rows // 2, self.late // 2, 0
        return False


def lag_of(policy: Policy, state: PolicyState | None = None) -> int | None:
    """How far behind the top a policy keeps a watermark, limits aside; None where that is not its business."""
    match policy:
        case LimitingLag() | LimitingLagAndDelay() | LimitingLagAndLull():
            return policy.lag
        case LimitingTimestampAndWallClockLag():
            return policy.timestamp_lag
        case TargetCompleteness():
            return state.lag if isinstance(state, TargetState) else policy.cold_start
        case _:
            return None


@dataclass(frozen=True)
class Reported(_Rule):
    """The client knows better and sends ready-made watermarks; event times only move the top."""

    follows_clock: ClassVar[bool] = False

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return ReportedState(numbers)


class ReportedState(PolicyState):
    def event(self, time: int, at: Moment) -> None:
        pass

    def report(self, watermark: int) -> None:
        """Takes a watermark, which must be ahead of the substream's last."""
        self.watermark = self.lagged = watermark
