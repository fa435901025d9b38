"""Who held the watermark of a job, and for how long, from the samples of its timeline."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import Field

from tidegate.domain.calendar import HOUR_MS
from tidegate.domain.history import COARSE_MS, FINE_MS, SAMPLES_KEPT, HolderRange, Sample
from tidegate.domain.results import HoldReason
from tidegate.views.reader import Reader
from tidegate.views.types import Answer
from tidegate.views.watermark import WatermarkState

RANGES_MS: Mapping[str, int] = {"15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000}
"""Ranges of processing time before now."""

HolderKind = Literal["substream", "open_batch", "missing_query", "hold"]
HolderKey = tuple[HolderKind, str, str]
"""Kind of the holder, its query, and the name of the substream or the hold."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A sample, and the part of a range in which it is the latest sample."""

    sample: Sample
    from_ms: int
    to_ms: int


def key_of(reason: HoldReason, query: str, name: str) -> HolderKey:
    """Return the key of a holder. A substream is the same holder for each reason."""
    return reason if reason in ("open_batch", "missing_query", "hold") else "substream", query, name


def key_of_sample(sample: Sample) -> HolderKey | None:
    """Return the key of the holder of a sample; None if the watermark had no holder."""
    return None if sample.reason is None else key_of(sample.reason, sample.query, sample.name)


def stretches(samples: Sequence[Sample], start_ms: int, end_ms: int) -> Iterator[Stretch]:
    """Yield the part of a range that belongs to each of the samples, oldest first."""
    ends = [*(sample.at_ms for sample in samples), end_ms][1:]
    for sample, until_ms in zip(samples, ends, strict=True):
        from_ms, to_ms = max(sample.at_ms, start_ms), min(until_ms, end_ms)
        if from_ms < to_ms:
            yield Stretch(sample, from_ms, to_ms)


def held_by_key(parts: Sequence[Stretch]) -> Counter[HolderKey]:
    """Return how many milliseconds each holder held the watermark."""
    held: Counter[HolderKey] = Counter()
    for part in parts:
        key = key_of_sample(part.sample)
        if key is not None:
            held[key] += part.to_ms - part.from_ms
    return held


def interval_of(range_ms: int) -> int:
    """Return the interval of the samples that cover a range."""
    return FINE_MS if range_ms <= FINE_MS * SAMPLES_KEPT[FINE_MS] else COARSE_MS


class HeldTime(Answer):
    """How long one holder held the watermark."""

    kind: HolderKind = Field(
        description="`substream`, `open_batch` (the open batches of a query together), `missing_query`, or `hold`.",
        examples=["substream"],
    )
    query: str = Field(
        description="Query of the substream or the batches, or the missing query.", examples=["departures"]
    )
    substream: str | None = Field(description="Substream that held the watermark.", examples=["HNL"])
    hold: str | None = Field(description="Hold that held the watermark.", examples=[None])
    held_ms: int = Field(description="Time in milliseconds.", examples=[52_704_000])
    share: float = Field(description="Share of the measured time.", examples=[0.61])


class HeldHour(Answer):
    """Who held the watermark within one hour of processing time."""

    start_ms: int = Field(
        description="Processing time at which the hour, or the range, starts.", examples=[1357552800000]
    )
    end_ms: int = Field(description="Processing time at which it ends.", examples=[1357556400000])
    holders: list[HeldTime] = Field(description="Holders, longest first.")


class Holders(WatermarkState):
    """Who held the watermark in a range of processing time, and for how long."""

    start_ms: int = Field(
        description="Processing time at which the measured time starts: the start of the range, or the first sample.",
        examples=[1357466400000],
    )
    interval_ms: int = Field(
        description="Distance of the samples in milliseconds. Shorter times may be missing.", examples=[300_000]
    )
    holders: list[HeldTime] = Field(description="Holders, longest first.")
    hours: list[HeldHour] = Field(description="The same for each hour, oldest first.")


async def read_holders(reader: Reader, job: str, of: HolderRange, most: int) -> Holders:
    """Return who held the watermark of a job.

    Args:
        reader: Reader that issues the watermark token.
        job: The job.
        of: The range before now.
        most: Maximum number of holders, and of holders of each hour.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    range_ms = RANGES_MS[of]
    interval_ms = interval_of(range_ms)
    found = await reader.store.reads.samples(job, interval_ms, range_ms // interval_ms + 1)
    now_ms = found.state.now_ms
    start_ms = now_ms - range_ms
    if found.samples:
        start_ms = min(max(found.samples[0].at_ms, start_ms), now_ms)
    cuts = [start_ms, *range(start_ms - start_ms % HOUR_MS + HOUR_MS, now_ms, HOUR_MS), now_ms]
    hours = [
        HeldHour(start_ms=first, end_ms=last, holders=held_times(found.samples, first, last, most))
        for first, last in pairwise(cuts)
        if first < last
    ]
    return Holders(
        **reader.members(job, found.state),
        start_ms=start_ms,
        interval_ms=interval_ms,
        holders=held_times(found.samples, start_ms, now_ms, most),
        hours=hours,
    )


async def read_shares(reader: Reader, now_ms: Mapping[str, int], most: int) -> dict[str, list[tuple[HolderKey, float]]]:
    """Return the share of the last hour for which the first holders held the watermarks of jobs.

    Args:
        reader: Reader of the store.
        now_ms: The jobs, each with the processing time of its status.
        most: Maximum number of holders of a job.
    """
    timelines = await reader.store.reads.timelines([*now_ms], COARSE_MS, HOUR_MS // COARSE_MS + 1)
    found: dict[str, list[tuple[HolderKey, float]]] = {}
    for job, samples in timelines.items():
        start_ms = now_ms[job] - HOUR_MS
        held = held_by_key([*stretches(samples, start_ms, now_ms[job])])
        found[job] = [(key, ms / HOUR_MS) for key, ms in held.most_common(most)]
    return found


def held_times(samples: Sequence[Sample], start_ms: int, end_ms: int, most: int) -> list[HeldTime]:
    """Return the holders in a range of processing time, longest first."""
    held = held_by_key(list(stretches(samples, start_ms, end_ms)))
    total = max(end_ms - start_ms, 1)
    return [
        HeldTime(
            kind=kind,
            query=query,
            substream=name if kind == "substream" else None,
            hold=name if kind == "hold" else None,
            held_ms=held_ms,
            share=held_ms / total,
        )
        for (kind, query, name), held_ms in held.most_common(most)
    ]
