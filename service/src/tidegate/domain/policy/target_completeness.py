"""``target_completeness``: a lag learned from the delays of rows, so that a given share of them is on time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime
from tidegate.domain.sketch import EDGES, ROW, Sketch

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

    def resume(self, before: PolicyState, max_event_time: int | None, at: ProcessingTime) -> "TargetState":
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

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Apply an event time."""
        self.max_event_time = highest(self.max_event_time, event_time)
        self.poll(at)

    def poll(self, at: ProcessingTime) -> None:
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
        if wanted is None:
            return False
        if self.learned is None or self.relearning or wanted > self.lag:
            self.learned, self.relearning = wanted, False
            return False
        lag = self.lag
        for _ in range(min(steps, MAX_STEPS)):
            lag -= math.ceil((lag - wanted) / NARROWING)
        self.learned = lag
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
