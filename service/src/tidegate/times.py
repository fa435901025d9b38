"""Times and durations as users write and read them."""

import math
import re
from datetime import UTC, datetime, timedelta

MS = 1000
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Range of the years 1 to 9999. A time outside this range is printed as a number."""
ROUND_MS: tuple[int, ...] = (
    *(digit * 10**power for power in range(3) for digit in (1, 2, 5)),
    *(step * unit for unit in (1000, 60_000) for step in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6, 12)),
    *(days * 86_400_000 for days in (1, 2, 5, 10, 30, 100)),
)
"""Round durations in milliseconds, ascending: steps of axes, and widths of bins."""

SECONDS, MICROSECONDS = range(1_000_000_000, 4_102_444_800), range(10**14, 2**53)
"""Numbers that are Unix seconds from 2001 to 2099, or Unix microseconds from 1973 on, rather than Unix milliseconds.

As milliseconds, they are times in January or February 1970, or after the year 5138.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRINTED_UNITS_S = (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def parse_time(text: str, round_up: bool = False) -> int:
    """Return Unix milliseconds from ISO 8601 or from a number.

    Args:
        text: A time with an offset or ``Z``; a date, which means midnight UTC; or Unix milliseconds.
        round_up: Whether a part of a millisecond is rounded up. By default it is rounded down, as in event times.

    Raises:
        ValueError: If the text is not a time. The message says what to write.
    """
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2013-01-14T00:00Z, 2013-01-14, or Unix milliseconds") from None
    if parsed.tzinfo is None:
        if len(text) > len("2013-01-14"):
            raise ValueError(f"{text!r} has no time zone: add Z, or an offset such as +01:00")
        parsed = parsed.replace(tzinfo=UTC)
    whole, rest = divmod(parsed - _EPOCH, timedelta(milliseconds=1))
    return whole + (round_up and bool(rest))


def doubt_about(at_ms: int) -> str | None:
    """Return why a number is unlikely to be a time in Unix milliseconds, and what to write; None if it is likely.

    A time long ago is likely, because old data is replayed.
    """
    if at_ms in SECONDS:
        return f"{at_ms} looks like Unix seconds; write {at_ms * MS}, in milliseconds"
    if at_ms in MICROSECONDS:
        return f"{at_ms} looks like Unix microseconds; write {at_ms // MS}, in milliseconds"
    day = re.fullmatch("((?:19|20)[0-9]{2})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])", str(at_ms))
    return None if day is None else f"{at_ms} looks like a date; write {'-'.join(day.groups())}, or Unix milliseconds"


def parse_duration_s(text: str) -> float:
    """Return seconds from a text such as ``90s``, ``30m``, ``2h``, ``1d`` or ``1h30m``.

    Raises:
        ValueError: If the text is not a duration. The message says what to write.
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or not math.isfinite(seconds):
        raise ValueError(f"{text[:40]!r} is not a duration: write 90s, 30m, 2h, 1d, or 1h30m")
    return seconds


def format_time(at_ms: int | None) -> str:
    """Return a time in UTC, with milliseconds if they are not 0, or ``-`` for None."""
    if at_ms is None:
        return "-"
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return str(at_ms)
    seconds, rest = divmod(at_ms, MS)
    time = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=rest * MS)
    return time.isoformat(" ", "milliseconds" if rest else "seconds") + "Z"


def format_difference(ms: int) -> str:
    """Return a duration with a minus sign if it is negative."""
    return f"-{format_duration(-ms)}" if ms < 0 else format_duration(ms)


def format_duration(ms: int) -> str:
    """Return a duration in its two largest units, such as ``8 min 20 s``. A negative duration becomes ``0 ms``."""
    seconds = max(ms, 0) // MS
    if seconds < 1:
        return f"{max(ms, 0)} ms"
    parts: list[str] = []
    for unit, size in _PRINTED_UNITS_S:
        number, seconds = divmod(seconds, size)
        if number or parts:
            parts.append(f"{number} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))
