"""The same batches under Tidegate, and in Spark with a longer delay: rows that would be lost, and when windows close.

The machine is that of the coordinator, from the distribution ``tidegate``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate_spark.auditing.checkpoint import Judgement
from tidegate_spark.auditing.losses import AuditedBatch
from tidegate_spark.auditing.rows import Group, Window
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import InvalidUsage

STEPS_MS = (1000, 60_000)
"""Recommended lags are whole seconds, and above ten minutes whole minutes."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A substream that held the watermark.

    Attributes:
        substream: The substream.
        batches: Number of batches after which it held the watermark.
        held_ms: Time from these batches to their next ones (processing time, in milliseconds).
    """

    substream: str
    batches: int
    held_ms: int


@dataclass(frozen=True, slots=True)
class UnderPolicy:
    """The same batches under another watermark.

    Attributes:
        name: Name of the policy, if it is one of the user.
        target: Share of rows on time for which the lag is recommended; None for the delay of the query, or for a
            policy of the user.
        lag_ms: Tidegate: the lag of the minimum over the substreams; None for a policy of the user. Spark: the time by
            which each delay of ``withWatermark`` would be longer.
        rows: Rows with an event time.
        lost: Rows that would have been late.
        windows: Windows that would have closed.
        delay_ms: Mean distance from the end of a window to the highest event time when it closes; None without one.
        holders: Who would have held the watermark, the longest first; nobody in Spark.
    """

    name: str | None
    target: float | None
    lag_ms: int | None
    rows: int
    lost: int
    windows: int
    delay_ms: float | None
    holders: tuple[Holding, ...]

    @property
    def share(self) -> float:
        """The share of lost rows."""
        return self.lost / self.rows if self.rows else 0.0


def _simulate() -> Any:
    try:
        from tidegate.domain import simulate
    except ImportError:
        raise InvalidUsage(
            "The audit needs the package tidegate, with its machine: pip install 'tidegate-spark[audit]'."
        ) from None
    return simulate


def substream_name(source: int, substream: str) -> str:
    """Return the name of a substream of a query with several sources, for people and among the holders."""
    name = substream or "all rows"
    return f"{source}/{name}" if source else name


def recorded_batches(
    groups: Iterable[Group], batches: Sequence[AuditedBatch], judged: Judgement | None, slot_ms: int
) -> list[Any]:
    """Return the batches for the machine.

    A window counts as its last millisecond, which is late once its end is. Rows that are judged by their own time count
    as if all of a minute were at its beginning.

    Args:
        groups: The groups of all rows.
        batches: The batches by their numbers.
        judged: What the query compares with the watermark.
        slot_ms: Width of a slot.
    """
    recorded_batch = _simulate().RecordedBatch
    highest: dict[int, dict[str, int]] = defaultdict(dict)
    rows: dict[int, Counter[int]] = defaultdict(Counter)
    before_end = 1 if judged == "window" else slot_ms
    for group in groups:
        if group.end is not None and group.highest is not None:
            of, name = highest[group.batch], substream_name(group.source, group.substream)
            of[name] = max(of.get(name, group.highest), group.highest)
            rows[group.batch][group.end - before_end] += group.rows
    at, found = 0, []
    for batch in batches:
        at = max(at, batch.planned_ms)
        found.append(recorded_batch(at, highest[batch.number], tuple(rows[batch.number].items())))
    return found


def under_policies(
    recorded: Sequence[Any],
    judged: Judgement | None,
    delay_ms: int,
    targets: Sequence[float],
    policies: Mapping[str, Any],
) -> list[UnderPolicy]:
    """Run the batches through the machine with the delay of the query as the lag, and with a lag for each target.

    The policies of the user come last.

    Args:
        recorded: The batches of :func:`recorded_batches`.
        judged: What the query compares with the watermark.
        delay_ms: Delay of the query.
        targets: Shares of rows on time.
        policies: The result of :func:`parsed`.
    """
    simulate = _simulate()
    from tidegate.domain.config import JobConfig as DomainConfig
    from tidegate.domain.policies import LimitingLag

    lags = [(None, delay_ms), *zip(targets, _lags(recorded, targets), strict=True)]
    found = []
    configs = [(None, target, lag_ms, DomainConfig(LimitingLag(lag_ms))) for target, lag_ms in lags]
    given = [(name, None, None, config) for name, config in policies.items()]
    for name, target, lag_ms, config in [*configs, *given]:
        steps = list(simulate.in_batches(recorded, config))
        found.append(_under(simulate, steps, judged, name, target, lag_ms, _holders(steps, recorded)))
    return found


def in_spark(
    recorded: Sequence[Any],
    batches: Sequence[AuditedBatch],
    judged: Judgement,
    delay_ms: int,
    targets: Sequence[float],
) -> list[UnderPolicy]:
    """Return the shortest delay for each target with which Spark itself would keep that share of the same batches.

    A delay that is longer by some time lowers each watermark by that time. With several ``withWatermark``, each delay
    grows by the same time. The first result is that of the query as it is.

    Args:
        recorded: The batches of :func:`recorded_batches`.
        batches: The batches by their numbers.
        judged: What the query compares with the watermark.
        delay_ms: Delay of the query, the longest one.
        targets: Shares of rows on time.
    """
    simulate = _simulate()
    # A row that is judged by its own time is late if it is not above Spark's watermark. The machine keeps it there.
    more_ms = 0 if judged == "window" else 1
    late = [batch.late[1] + more_ms for batch in batches]
    needed: Counter[int] = Counter()
    for compared, batch in zip(late, recorded, strict=True):
        for at, number in batch.rows:
            needed[max(0, compared - at)] += number
    found = []
    for target, needed_ms in [(None, 0), *zip(targets, _shortest(needed, targets), strict=True)]:
        longer_ms = _rounded(delay_ms + needed_ms) - delay_ms if needed_ms else 0
        lowered = [compared - longer_ms for compared in late]
        highest, steps = -simulate.UNBOUNDED.highest, []
        for batch, before, after in zip(recorded, lowered, [*lowered[1:], lowered[-1]], strict=True):
            highest = max((highest, *batch.max_event_times.values()))
            steps.append(simulate.Step(batch.rows, before, after, highest))
        found.append(_under(simulate, steps, judged, None, target, longer_ms, ()))
    return found


def _under(
    simulate: Any,
    steps: Sequence[Any],
    judged: Judgement | None,
    name: str | None,
    target: float | None,
    lag_ms: int | None,
    holders: tuple[Holding, ...],
) -> UnderPolicy:
    has_windows = judged == "window"
    outcome = simulate.classify(steps, 1)
    return UnderPolicy(
        name,
        target,
        lag_ms,
        outcome.rows,
        outcome.dropped,
        outcome.windows if has_windows else 0,
        outcome.average_latency if has_windows else None,
        holders,
    )


def parsed(policies: Mapping[str, JobConfig] | None, window: Window | None) -> dict[str, Any]:
    """Return the job configurations of the user for the machine.

    Args:
        policies: The configurations by their names; None: none.
        window: The windows of the query; None if it judges each row by its own time.

    Raises:
        InvalidUsage: If a configuration is not valid, or says nothing about recorded batches.
    """
    if not policies:
        return {}
    _simulate()
    from tidegate.domain.errors import InvalidConfig
    from tidegate.views.config import parsed_config

    found = {}
    for name, policy in policies.items():
        try:
            config = parsed_config(policy)
        except InvalidConfig as error:
            field = error.details["field"]
            raise InvalidUsage(f"The policy {name!r} is no job configuration: {field}: {error}") from None
        if problem := _problem(config, window):
            raise InvalidUsage(f"The policy {name!r} {problem}.")
        found[name] = replace(config, expected_queries=())  # the recorded query is the only one
    return found


def _problem(config: Any, window: Window | None) -> str | None:
    """Return why a configuration says nothing about recorded batches; None if it does."""
    from tidegate.domain.calendar import DAY_MS
    from tidegate.domain.policies import Reported, TargetCompleteness

    kinds = {type(each) for each in config.policies()}
    if Reported in kinds:
        return "has the kind `reported`, which needs watermarks of the source: use another one"
    if TargetCompleteness in kinds:
        return "has the kind `target_completeness`, which learns from single rows: run it with tidegate simulate"
    if config.arrival_target is None or window is None:
        return None
    frame_ms = DAY_MS if config.frames.is_calendar else config.frames.length
    if window.is_sliding or frame_ms % window.size_ms:
        return "has arrival_target, for which each window must lie in one frame: use tumbling windows that fill frames"
    return None


def _lags(recorded: Sequence[Any], targets: Sequence[float]) -> list[int]:
    """Return the lowest lag for each target: the distance from the merged event time to the row that must be kept."""
    reached: dict[str, int] = {}
    merged: int | None = None
    needed: Counter[int] = Counter()
    for batch in recorded:
        for at, number in batch.rows:
            needed[0 if merged is None else max(0, merged - at)] += number
        reached.update({name: max(reached.get(name, at), at) for name, at in batch.max_event_times.items()})
        if reached:
            lowest = min(reached.values())
            merged = lowest if merged is None else max(merged, lowest)
    return [_rounded(lag) for lag in _shortest(needed, targets)]


def _shortest(needed: Counter[int], targets: Sequence[float]) -> list[int]:
    """Return the shortest duration for each target, from the numbers of rows by the duration that each needs."""
    total, found = needed.total(), []
    for target in targets:
        kept, duration = 0, 0
        for duration in sorted(needed):
            kept += needed[duration]
            if kept >= target * total:
                break
        found.append(duration)
    return found


def _rounded(duration_ms: int) -> int:
    step = STEPS_MS[duration_ms > 10 * STEPS_MS[1]]
    return math.ceil(duration_ms / step) * step


def _holders(steps: Sequence[Any], recorded: Sequence[Any]) -> tuple[Holding, ...]:
    batches: Counter[str] = Counter()
    held: Counter[str] = Counter()
    first = len(recorded) - len(steps)  # batches before the first event time make no step
    for number, step in enumerate(steps, start=first):
        if step.holder is None or step.holder.substream is None:
            continue
        batches[step.holder.substream] += 1
        if number + 1 < len(recorded):
            held[step.holder.substream] += recorded[number + 1].at - recorded[number].at
    names = sorted(batches, key=lambda name: (-held[name], -batches[name], name))
    return tuple(Holding(name, batches[name], held[name]) for name in names)


def longest_gaps(recorded_at: Sequence[tuple[int, Iterable[str]]]) -> dict[str, int]:
    """Return the longest time without a row of each substream that had rows again (processing time, in milliseconds).

    Args:
        recorded_at: For each batch in order: its processing time, and the substreams with rows.
    """
    last: dict[str, int] = {}
    gaps: dict[str, int] = {}
    for at, names in recorded_at:
        for name in names:
            if name in last:
                gaps[name] = max(gaps.get(name, 0), at - last[name])
            last[name] = at
    return gaps
