"""Statistics of a job: the delays of its rows, and the latency in addition to the lag."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidegate.domain.emission import slowest
from tidegate.domain.journal import Kind, named
from tidegate.domain.names import member
from tidegate.domain.rows import RowsByDelay
from tidegate.domain.sketch import MAX_WEIGHT, STEPS, Pairs, Sketch, bucket_of, decayed, typical
from tidegate.domain.state import JobState, Substream

NO_DELAYS: Mapping[str, RowsByDelay] = {}


def measure(job: JobState, query: str, delays: Iterable[tuple[str, RowsByDelay]], merged: int | None) -> None:
    """Add the delays of rows, and update learned lags.

    Args:
        job: The job.
        query: The query of the rows.
        delays: Numbers of rows by delay bucket, for each substream. A substream may occur several times. Unknown and
            done substreams, and substreams without a max event time, are ignored.
        merged: C without the throttle, when the batch began or before the report.
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
    """Return the distance of the substream's watermark above ``merged``; None if ``merged`` is None."""
    own = None if substream.policy.follows_clock else substream.watermark
    if own is None:
        assert substream.max_event_time is not None and substream.policy_state.lag is not None
        own = substream.max_event_time - substream.policy_state.lag
    return None if merged is None else max(own - merged, 0)


def shifted(rows: Pairs, ahead: int | None) -> Iterable[tuple[int, int]]:
    """Yield the rows with their delays reduced by ``ahead``; if ``ahead`` is None, all delays are 0."""
    for bucket, count in rows:
        yield (bucket_of(typical(bucket) - ahead) if bucket and ahead is not None else 0), count


def count_wait(job: JobState, before: int | None) -> None:
    """Add the latency of the event times in ``(before, C]`` to the statistics."""
    watermark = job.coalesced_watermark
    if before is None or watermark is None or watermark <= before or job.max_event_time is None:
        return
    behind, statistics = slowest(job), job.delay_statistics
    lag = None if behind is None else behind[1].policy_state.lag
    if lag is None:
        return
    step = max(1, job.config.delay_half_life_ms // STEPS)
    remaining = decayed(statistics.wait_weight, watermark // step - before // step)
    weight = min(watermark - before, MAX_WEIGHT - remaining)
    # Compute with doubles, as the functions in Redis do.
    middle = before + (float(watermark) - before + job.config.throttle.slide) / 2
    share = remaining / statistics.wait_weight if statistics.wait_weight else 0.0
    statistics.wait_sum = statistics.wait_sum * share + (float(job.max_event_time - lag) - middle) * weight
    statistics.wait_weight = remaining + weight
