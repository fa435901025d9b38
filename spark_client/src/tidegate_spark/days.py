"""Days of a time zone. When its clocks change, a day has 23 or 25 hours.

This module is pickled by value with :mod:`tidegate_spark.windows.markers`, so that Spark's Python does not need this
package. The module therefore imports no other module of the package.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DAY_MS = 86_400_000

_ERA = 146_097
"""Number of days of 400 years, after which the calendar repeats."""
_EPOCH = datetime(1970, 1, 1)  # of the clock in the time zone
_LOWEST, _HIGHEST = ((day - _EPOCH).days for day in (datetime(1, 1, 3), datetime(9999, 12, 29)))
"""Bounds of the days that Python can represent in each time zone, as numbers of days since 1970."""


@dataclass(frozen=True, slots=True)
class LocalDays:
    """Days of a time zone.

    Attributes:
        time_zone: Name of the time zone, such as ``Europe/Berlin``.
        offset: Time of the clock at which a day begins, in milliseconds after midnight.
    """

    time_zone: str
    offset: int

    def start_of(self, number: int) -> int:
        """Return the start of a day in epoch milliseconds.

        If the clock shows this time twice, the day begins at the first. If the clock skips it, the day begins as much
        later as the clock skips.

        Args:
            number: Number of days from 1970-01-01 to the date of the day in the time zone.
        """
        eras = -(-(number - _HIGHEST) // _ERA) if number > _HIGHEST else min((number - _LOWEST) // _ERA, 0)
        shown = _EPOCH + timedelta(days=number - eras * _ERA, milliseconds=self.offset)
        moment = shown.replace(tzinfo=ZoneInfo(self.time_zone)).astimezone(UTC)
        return (moment - _EPOCH.replace(tzinfo=UTC)) // timedelta(milliseconds=1) + eras * _ERA * DAY_MS

    def start_before(self, time_ms: int) -> int:
        """Return the start of the day that contains a time, in epoch milliseconds."""
        return self.start_of(self._containing(time_ms))

    def end_after(self, time_ms: int) -> int:
        """Return the end of the day that contains a time, in epoch milliseconds."""
        return self.start_of(self._containing(time_ms) + 1)

    def _containing(self, time_ms: int) -> int:
        number = time_ms // DAY_MS + 1  # a clock is less than a day ahead of UTC
        while self.start_of(number) > time_ms:
            number -= 1
        return number
