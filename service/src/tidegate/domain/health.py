"""The health of a job: one word for lists and alerts."""

from typing import Literal, get_args

from tidegate.domain.results import Holder, JobSummary, WatermarkState

Health = Literal["stale", "held", "lagging", "no_watermark", "running", "all_idle", "empty", "complete"]
WORST_FIRST: tuple[Health, ...] = get_args(Health)
LONG_MS = 60_000
"""Time after which an open batch or a silent substream counts as holding the watermark."""


def health(state: WatermarkState, summary: JobSummary, stale_after_ms: int, max_lag_ms: int | None) -> Health:
    """Return the health of a job.

    A job that is held and lagging is ``held``, because its holder is the cause that an operator can act on. Lists show
    the lag beside the health, and an alert compares it with ``max_lag_ms`` in either case.

    ============ ====================================================================================================
    stale        no client call for ``stale_after_ms``, and no open batch
    held         a hold, a missing query, or a blocked or never reported substream holds the watermark, or an open batch
                 or a silent substream has held it for ``LONG_MS``
    lagging      the watermark is more than ``max_lag_ms`` behind processing time
    no_watermark substreams, batches or expected queries exist, but no watermark yet
    running      the job has a watermark, which follows its slowest substream
    all_idle     all substreams are idle
    empty        no substreams, batches or expected queries exist
    complete     the input has ended
    ============ ====================================================================================================
    """
    if state.complete:
        return "complete"
    last_contact_ms, holder = summary.last_contact_ms, state.held_by
    if last_contact_ms is not None and state.now_ms - last_contact_ms >= stale_after_ms and not summary.open_batches:
        return "stale"
    if state.watermark is None:
        known = summary.active + summary.idle + summary.done + summary.open_batches
        return "no_watermark" if known or summary.missing_queries else "empty"
    if holder is not None and is_held(holder.reason, _silent_since_ms(holder), state.now_ms):
        return "held"
    if max_lag_ms is not None and state.now_ms - state.watermark > max_lag_ms:
        return "lagging"
    return "all_idle" if holder is None and summary.all_idle else "running"


def is_held(reason: str, silent_since_ms: int | None, now_ms: int) -> bool:
    """Return whether a holder makes its job ``held``: all holders do, except those that may move the watermark soon.

    Args:
        reason: Why the holder holds the watermark.
        silent_since_ms: Begin of an open batch; time of the last events of a substream.
        now_ms: Processing time.
    """
    if reason in ("slow", "open_batch") and silent_since_ms is not None:
        return now_ms - silent_since_ms >= LONG_MS
    return True


def _silent_since_ms(holder: Holder) -> int | None:
    return holder.begun_ms if holder.reason == "open_batch" else holder.last_event_ms
