"""Moments and durations as people write and read them."""

import math
import re
from datetime import UTC, datetime

MS = 1000
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: beyond them a number is shown as it is."""


def moment(text: str) -> int:
    """Epoch milliseconds from ISO 8601 (with an offset or ``Z``; a date alone is midnight UTC), or from such a number.

    :raises ValueError: for anything else; the message says what to write.
    """
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no moment: 2013-01-14T00:00Z, 2013-01-14, or epoch milliseconds") from None
    if read.tzinfo is None:
        if len(text) > len("2013-01-14"):
            raise ValueError(f"{text!r} says no time zone: add Z, or an offset such as +01:00")
        read = read.replace(tzinfo=UTC)
    return round(read.timestamp() * MS)


def duration_s(text: str) -> float:
    """Seconds from ``90s``, ``30m``, ``2h``, ``1d``, or ``1h30m``.

    :raises ValueError: for anything else; the message says what to write.
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or not math.isfinite(seconds):
        raise ValueError(f"{text[:40]!r} is no duration: 90s, 30m, 2h, 1d, or 1h30m")
    return seconds


def shown(at_ms: int | None) -> str:
    """UTC, to the second where that is all; ``-`` for none."""
    if at_ms is None:
        return "-"
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return str(at_ms)
    seconds, rest = divmod(at_ms, MS)
    read = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=rest * MS)
    return read.isoformat(" ", "milliseconds" if rest else "seconds") + "Z"


def for_how_long(ms: int) -> str:
    """In the two largest units that it has: ``8 min 20 s``."""
    seconds = max(ms, 0) // MS
    if seconds < 1:
        return f"{max(ms, 0)} ms"
    found: list[str] = []
    for unit, size in (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number or found:
            found.append(f"{number} {unit}")
    return " ".join(part for part in found[:2] if not part.startswith("0 "))
