"""How a job stands, in one word: for lists, worst first, and for alerts."""

from typing import Literal, get_args

from tidegate.domain.records import Answer, Summary

Health = Literal["stale", "held", "no_watermark", "running", "all_idle", "empty", "complete"]
WORST_FIRST: tuple[Health, ...] = get_args(Health)
LONG_MS = 60_000
"""A batch that is open, or a substream that is silent, for so long holds the watermark for more than its turn."""


def health(answer: Answer, summary: Summary, stale_after_ms: int) -> Health:
    """
    ============ ====================================================================================================
    stale        no client has spoken for it for ``stale_after_ms``, and no batch of it is open
    held         by an operator, a missing query, a substream that is blocked or was never seen; or by an open batch, or
                 a substream, of which nothing came for ``LONG_MS``
    no_watermark there is none yet, though there are substreams, batches, or queries that are expected
    running      it has a watermark, and somebody is always the furthest behind
    all_idle     no substream is waited for
    empty        nobody has reported yet
    complete     the input has ended
    ============ ====================================================================================================
    """
    if answer.complete:
        return "complete"
    heard_ms, held_by = summary.last_contact_ms, answer.held_by
    if heard_ms is not None and answer.now_ms - heard_ms >= stale_after_ms and not summary.open_batches:
        return "stale"
    if answer.watermark is None:
        known = summary.active + summary.idle + summary.done + summary.open_batches
        return "no_watermark" if known or summary.missing_queries else "empty"
    if held_by is None:
        return "all_idle" if summary.all_idle else "running"
    quiet_since_ms = held_by.begun_ms if held_by.reason == "open_batch" else held_by.last_event_ms
    if held_by.reason in ("slow", "open_batch") and quiet_since_ms is not None:
        return "held" if answer.now_ms - quiet_since_ms >= LONG_MS else "running"
    return "held"
