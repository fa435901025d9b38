"""Windows that are the days of a time zone."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tidegate_spark import InvalidUsage
from tidegate_spark.days import DAY_MS, LocalDays
from tidegate_spark.frame import Frame

HOUR_MS = 3_600_000
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # the clocks skipped midnight
    "America/St_Johns",  # the clocks went back from 00:01 to 23:01
    "America/Havana",  # the clocks go back from 01:00 to 00:00
    "Pacific/Apia",  # has skipped 30 December 2011
    "Australia/Lord_Howe",  # the clocks change by half an hour
    "Asia/Kathmandu",
]


def ms(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("zone", "noon", "hours"),
    [
        ("Europe/Berlin", "2024-03-31T12:00", 23),
        ("Europe/Berlin", "2024-10-27T12:00", 25),
        ("Europe/Berlin", "2024-07-01T12:00", 24),
        ("America/New_York", "2013-03-10T12:00", 23),
        ("America/New_York", "2013-11-03T12:00", 25),
        ("America/Sao_Paulo", "2018-11-04T12:00", 23),
        ("America/Havana", "2024-11-03T12:00", 25),
        ("Australia/Lord_Howe", "2024-04-07T12:00", 24.5),
        ("Pacific/Apia", "2011-12-29T12:00", 24),
    ],
)
def test_a_day_is_as_long_as_on_the_clock(zone: str, noon: str, hours: float) -> None:
    frame = Frame(DAY_MS, DAY_MS, time_zone=zone)
    at = ms(noon, zone)
    start, end = frame.cut(at), frame.cut_at_the_end(at + 1)
    assert start < at < end
    assert end - start == hours * HOUR_MS
    assert frame.cut(end) == end and frame.cut(end - 1) == start
    assert frame.first_open(end - 1) == start and frame.first_open(end) == end


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("offset", [0, 6 * HOUR_MS, 24 * HOUR_MS - 1])
def test_days_have_no_gaps_and_no_overlaps(zone: str, offset: int) -> None:
    """Every time is in exactly one day, also where the clocks change."""
    days, chosen = LocalDays(zone, offset), random.Random(0)  # noqa: S311 - the same times each time
    times = [chosen.randrange(ms("1900-01-01"), ms("2100-01-01")) for _ in range(300)]
    times += [chosen.randrange(-(2**53), 2**53) for _ in range(100)]
    for at in times:
        start, end = days.start_before(at), days.end_after(at)
        assert start <= at < end
        assert 20 * HOUR_MS < end - start <= 49 * HOUR_MS
        assert days.start_before(start) == start == days.start_before(end - 1)
        assert days.end_after(start - 1) == start


def test_an_offset_is_a_time_of_the_clock() -> None:
    days = LocalDays("Europe/Berlin", 6 * HOUR_MS)
    assert days.start_before(ms("2024-03-31T05:59", "Europe/Berlin")) == ms("2024-03-30T06:00", "Europe/Berlin")
    assert days.start_before(ms("2024-03-31T06:00", "Europe/Berlin")) == ms("2024-03-31T06:00", "Europe/Berlin")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"size": timedelta(hours=1)}, "pass a size of timedelta.days=1"),
        ({"slide": timedelta(hours=1)}, "no slide"),
        ({"offset": timedelta(days=1)}, "an offset of less than a day"),
        ({"time_zone": "Europe/Nowhere"}, "time_zone='Europe/Nowhere' is unknown"),
        ({"time_zone": "../etc/passwd"}, "is unknown"),
        ({"time_zone": 1}, "must be a name such as"),
        ({"of_timestamps": False, "size": 1}, "event times that are timestamps"),
        ({"offset": timedelta(hours=-1)}, r"offset must be 0 ms or more, in whole milliseconds; it is -3600000 ms\."),
    ],
)
def test_days_are_checked(given: dict[str, object], expected: str) -> None:
    valid = {
        "size": timedelta(days=1),
        "slide": None,
        "offset": None,
        "of_timestamps": True,
        "time_zone": "Europe/Berlin",
    }
    with pytest.raises(InvalidUsage, match=expected):
        Frame.of(**(valid | given))  # type: ignore[arg-type]
