"""Delays of rows, and the latency that waiting for them costs."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidegate.domain.emission import slowest
from tidegate.domain.journal import Kind, named
from tidegate.domain.names import member
from tidegate.domain.sketch import MAX_WEIGHT, STEPS, Pairs, Sketch, bucket_of, decayed, typical
from tidegate.domain.state import DelayStatistics, JobState, RowsByDelay, Substream

NO_DELAYS: Mapping[str, RowsByDelay] = {}


def measure(job: JobState, query: str, delays: Iterable[tuple[str, RowsByDelay]], merged: int | None) -> None:
    """Add the delays of rows, and update learned lags.

    Args:
        job: The job.
        query: The query of the rows.
        delays: Rows by bucket, by substream; a substream may occur several times. A substream without a max event time
            has no delays.
        merged: The unthrottled C for these rows.
    """
    measured = _known(job, query, delays)
    if not measured or job.max_event_time is None:
        return
    steps: dict[str, int] = {}
    pooled, behind_merged = Counter[int](), Counter[int]()
    for name, counts in measured.items():
        substream = job.substreams[query, name]
        assert substream.max_event_time is not None
        sketch = job.delays.setdefault((query, name), Sketch())
        steps[name] = sketch.decay_to(substream.max_event_time, job.config.delay_half_life_ms)
        sketch.add(counts.items())
        pooled.update(counts)
        behind_merged.update(_behind_merged(substream, counts, merged))
    statistics = job.delay_statistics
    for together, rows in ((statistics.pool, pooled), (statistics.merged, behind_merged)):
        together.decay_to(job.max_event_time, job.config.delay_half_life_ms)
        together.add(rows.items())
    relearning = [
        member((query, name))
        for name, counts in measured.items()
        if job.substreams[query, name].policy_state.learn(counts, job.delays[query, name], statistics.pool, steps[name])
    ]
    if relearning:
        job.journal.write(job.now_ms, Kind.RELEARNING, query=query, **named(relearning))


def _known(job: JobState, query: str, delays: Iterable[tuple[str, RowsByDelay]]) -> dict[str, Counter[int]]:
    measured: dict[str, Counter[int]] = {}
    for name, rows in delays:
        known = job.substreams.get((query, name))
        if known is not None and not known.done and known.max_event_time is not None:
            for bucket, count in rows:
                measured.setdefault(name, Counter())[bucket] += count
    return measured


def _behind_merged(substream: Substream, counts: Mapping[int, int], merged: int | None) -> Counter[int]:
    """Convert delays behind the substream's max event time to delays behind the merged watermark."""
    behind: Counter[int] = Counter()
    if substream.policy_state.lag is not None:
        for bucket, count in shifted(counts.items(), _ahead(substream, merged)):
            behind[bucket] += count
    return behind


def _ahead(substream: Substream, merged: int | None) -> int | None:
    """Return how far the substream's own watermark is ahead of the merged one; None without a merged watermark."""
    own = None if substream.policy.follows_clock else substream.watermark
    if own is None:
        assert substream.max_event_time is not None and substream.policy_state.lag is not None
        own = substream.max_event_time - substream.policy_state.lag
    return None if merged is None else max(own - merged, 0)


def shifted(rows: Pairs, ahead: int | None) -> Iterable[tuple[int, int]]:
    """Yield delays reduced by ``ahead``; if that is None, no row was late."""
    for bucket, count in rows:
        yield (bucket_of(typical(bucket) - ahead) if bucket and ahead is not None else 0), count


def count_wait(job: JobState, before: int | None) -> None:
    """Count the latency of what the watermark has passed since ``before``."""
    watermark = job.coalesced_watermark
    if before is None or watermark is None or watermark <= before or job.max_event_time is None:
        return
    behind = slowest(job)
    lag = None if behind is None else behind[1].policy_state.lag
    if lag is not None:
        add_wait(
            job.delay_statistics,
            before,
            watermark,
            job.config.throttle.slide,
            job.max_event_time - lag,
            job.config.delay_half_life_ms,
        )


def add_wait(
    statistics: DelayStatistics, before: int, watermark: int, slide: int, unlagged: int, half_life: int
) -> None:
    """Count the latency of the window ends in ``(before, watermark]``.

    Args:
        statistics: Statistics to add it to.
        before: The previous watermark.
        watermark: The current watermark.
        slide: Distance between window ends; 0 if every event time is one.
        unlagged: The max event time of the job, less the lag of the slowest substream.
        half_life: Progress of event time in which old counts decay to half.
    """
    step = max(1, half_life // STEPS)
    remaining = decayed(statistics.wait_weight, watermark // step - before // step)
    weight = min(watermark - before, MAX_WEIGHT - remaining)
    # In doubles, as the scripts compute it.
    middle = before + (float(watermark) - before + slide) / 2
    share = remaining / statistics.wait_weight if statistics.wait_weight else 0.0
    statistics.wait_sum = statistics.wait_sum * share + (float(unlagged) - middle) * weight
    statistics.wait_weight = remaining + weight
