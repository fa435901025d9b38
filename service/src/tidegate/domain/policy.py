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
    reported                                 what the client says
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.history import History
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, highest


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

    def resume(self, before: PolicyState, top: int | None, at: Moment) -> PolicyState:
        """The state in which this rule takes over from another (or from itself, with other numbers)."""
        ...


class _Rule:
    follows_clock: ClassVar[bool] = True
    limit: ClassVar[str | None] = None

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        raise NotImplementedError

    def resume(self, before: PolicyState, top: int | None, at: Moment) -> PolicyState:
        state = self.start(before.numbers)
        if top is not None:
            state.event(top, at)
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

    def resume(self, before: PolicyState, top: int | None, at: Moment) -> PolicyState:
        state = _DelayState(before.numbers, self.lag, self.max_delay_ms)
        if isinstance(before, _DelayState) and before.history.length_ms == self.max_delay_ms:
            state.history = before.history
        if top is not None:
            state.event(top, at)
        return state


class _DelayState(PolicyState):
    def __init__(self, numbers: NumberRange, lag: int, max_delay_ms: int) -> None:
        super().__init__(numbers)
        self.lag = lag
        self.top: int | None = None
        self.history = History(max_delay_ms)

    def event(self, time: int, at: Moment) -> None:
        self.top = highest(self.top, self.numbers.minus(time, 0))
        self._lag(time, self.lag)
        self.poll(at)

    def poll(self, at: Moment) -> None:
        self.watermark = highest(self.watermark, self.history.sample(at.observed_ms, self.top))

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        if self.history.boundary is None:
            return at.observed_ms
        return self.history.next_change_ms(lambda top: above(top, reading))


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
        lost_ms = at.now_ms - at.observed_ms
        return max(reading + self.wall_clock_lag - lost_ms, at.observed_ms + 1)


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
