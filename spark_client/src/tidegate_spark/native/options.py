"""The options of a native query."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

from tidegate_spark.config import JobConfig, check_keywords, longest_lag_ms, milliseconds
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.substreams import Values


class NativeOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Job.with_watermark`.

    Attributes:
        windows: Size of the windows, if windows are the query's only stateful operator. The watermark then moves from
            window end to window end, and the last windows close when the job is complete. None for all other
            operators: the watermark then moves by milliseconds.
        slide: Step between the windows; default: ``windows``.
        offset: Distance of the window boundaries from the epoch; default: 0.
        declare: Substreams that hold the watermark from the start; see :meth:`Stream.declare`.
        complete_batches: See :meth:`Stream.complete_batches`.
        replaces_substreams: See :meth:`Stream.start`.
        duplicates_within: Span of event time for ``dropDuplicatesWithinWatermark``: it drops every on-time row whose
            key occurs in another row at most this span earlier. Default: the longest lag in the ``config`` of
            :func:`connect`. Required for this operator if the job's lag may be longer: without ``config``, and with
            the policies ``reported`` and ``target_completeness`` without a ceiling.
    """

    windows: timedelta | None
    slide: timedelta | None
    offset: timedelta | None
    declare: Sequence[Values]
    complete_batches: bool
    replaces_substreams: bool
    duplicates_within: timedelta | None


def frame_of(options: NativeOptions) -> Frame | None:
    """Return the windows, None if ``windows`` is not set; raise InvalidUsage if an option is unknown or invalid."""
    check_keywords("option of with_watermark()", options, NativeOptions)
    windows, slide, offset = options.get("windows"), options.get("slide"), options.get("offset")
    if windows is not None:
        return Frame.of(windows, slide, offset, of_timestamps=True, called="windows")
    if slide is not None or offset is not None:
        raise InvalidUsage(
            f"{'offset' if slide is None else 'slide'} needs windows, the size of the windows; pass windows too."
        )
    return None


def delay_of(options: NativeOptions, config: JobConfig | None) -> int:
    """Return the delay of Spark's watermark below the highest event time of the markers, in milliseconds.

    Raises:
        InvalidUsage: If ``duplicates_within`` is invalid.
    """
    given = options.get("duplicates_within")
    if given is not None:
        return milliseconds("duplicates_within", given)
    return (None if config is None else longest_lag_ms(config)) or 0
