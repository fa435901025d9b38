"""Limits that let the watermark pass substreams that count.

A substream is *skewed* while its watermark is more than ``max_skew_ms`` behind the median watermark of the substreams
that count, skewed ones included. The median of an even number is the lower one of the two in the middle, so that one
fast clock cannot set the other of two substreams apart, and fewer than half ever are. Substreams without a watermark
are the lowest, and hold: how far behind they are is not known.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.domain.config import POLICY_LIMITS
from tidegate.domain.history import NAMES_KEPT
from tidegate.domain.job import JobState, Substream
from tidegate.domain.values import SubstreamKey, above, by_value, described, member


def median_watermark(job: JobState) -> int | None:
    """Return the median watermark of the substreams that count; None if it is that of one without a watermark."""
    watermarks = sorted((s.uncapped_watermark for s in job.substreams.values() if s.counts), key=by_value)
    return watermarks[(len(watermarks) - 1) // 2] if watermarks else None


def skew_bound(job: JobState) -> int | None:
    """Return the lowest watermark of a substream that is not skewed; None if none can be."""
    if job.config.max_skew_ms is None:
        return None
    if job.known_bounds is not None:
        return job.known_bounds.get(sum(substream.counts for substream in job.substreams.values()))
    median = median_watermark(job)
    return None if median is None else job.numbers.minus(median, job.config.max_skew_ms)


def is_skewed(substream: Substream, bound: int | None) -> bool:
    """Return whether the watermark of a substream that counts is below a bound."""
    return substream.counts and substream.uncapped_watermark is not None and above(bound, substream.uncapped_watermark)


@dataclass(frozen=True, slots=True)
class SkewedSubstream:
    """A substream that is too far behind the median."""

    query: str = described("Query. Empty for reports without batches.", example="departures")
    substream: str = described("Name of the substream.", example="HNL")
    behind_ms: int = described("Distance of its watermark behind the median, in milliseconds.", example=32_400_000)


@dataclass(frozen=True, slots=True)
class Skew:
    """The substreams that are too far behind the median to hold the watermark."""

    limit_ms: int = described("The limit, `max_skew_ms`.", example=21600000)
    median: int = described(
        "Median watermark of the substreams that count, skewed ones included.", example=1357556400000
    )
    count: int = described("Number of skewed substreams.", example=1)
    substreams: tuple[SkewedSubstream, ...] = described("The first 20 skewed substreams, the furthest behind first.")

    @classmethod
    def of(cls, bound: int, limit_ms: int, count: int, lowest: Iterable[tuple[int, SubstreamKey]]) -> "Skew":
        """Return the skew of a job.

        Args:
            bound: The bound of :func:`skew_bound`.
            limit_ms: The limit.
            count: Number of skewed substreams.
            lowest: The first skewed substreams with their watermarks, lowest first.
        """
        median = bound + limit_ms
        substreams = tuple(SkewedSubstream(*key, median - watermark) for watermark, key in lowest)
        return cls(limit_ms, median, count, substreams)


def skew_of(job: JobState) -> Skew | None:
    """Return the skewed substreams of a job; None if it has none."""
    bound, limit_ms = skew_bound(job), job.config.max_skew_ms
    if bound is None or limit_ms is None or job.is_complete:
        return None
    skewed = [
        (s.uncapped_watermark, key)
        for key, s in job.substreams.items()
        if is_skewed(s, bound) and s.uncapped_watermark is not None
    ]
    skewed.sort(key=lambda one: (one[0], member(one[1]).encode()))
    return Skew.of(bound, limit_ms, len(skewed), skewed[:NAMES_KEPT]) if skewed else None


def passed_by_limits(job: JobState, others: str | None) -> dict[str, list[tuple[int | None, str]]]:
    """Return the substreams that count and that the watermark may pass, with the watermarks that it passes, by limit.

    Args:
        job: The job.
        others: What lets it pass the substreams that are not skewed; None: nothing does.
    """
    counting = {key: substream for key, substream in job.substreams.items() if substream.counts}
    bound = skew_bound(job)
    found: dict[str, list[tuple[int | None, str]]] = {}
    limits = [*([] if others is None else [others]), *([] if bound is None else ["max_skew_ms"])]
    for limit in limits:
        of_limit = {key: s for key, s in counting.items() if is_skewed(s, bound) == (limit == "max_skew_ms")}
        found[limit] = [(s.uncapped_watermark, member(key)) for key, s in of_limit.items()]
    for limit in POLICY_LIMITS:
        found[limit] = [(s.policy_state.lagged, member(key)) for key, s in counting.items() if s.policy.limit == limit]
    return found
