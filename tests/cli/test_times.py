"""Parsing and formatting of times and durations."""

import pytest
import typer

from tidegate.cli.options import duration_s, time
from tidegate.times import format_duration, format_time

MIDNIGHT = 1_358_121_600_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2013-01-14T00:00Z", MIDNIGHT),
        ("2013-01-14", MIDNIGHT),
        ("2013-01-14T01:00:00+01:00", MIDNIGHT),
        ("2013-01-14 00:00:00.250+00:00", MIDNIGHT + 250),
        ("1358121600000", MIDNIGHT),
        ("-5", -5),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2013-01-13T23:59:59.999600Z", MIDNIGHT - 1),
        ("1969-12-31T23:59:59.999600Z", -1),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999),
    ],
)
def test_valid_times_are_parsed(text: str, at_ms: int) -> None:
    assert time(text) == at_ms


def test_a_wait_rounds_up() -> None:
    """A row within the millisecond of the time is waited for, as by the Spark client."""
    texts = ("2013-01-13T23:59:59.999600Z", "2013-01-14T00:00Z", "1969-12-31T23:59:59.999600Z", "7")
    assert [time(text, round_up=True) for text in texts] == [MIDNIGHT, MIDNIGHT, 0, 7]


@pytest.mark.parametrize("text", ["", "tomorrow", "2013-01-14T00:00", "2013-13-01", "1e3", "12:00Z"])
def test_invalid_times_are_refused(text: str) -> None:
    """A time without a time zone is refused, because users are in several time zones."""
    with pytest.raises(typer.BadParameter):
        time(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800)]
)
def test_valid_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1h 30m", "h", "-1s", "5 min", "1y"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration_s(text)


def test_times_and_durations_are_formatted() -> None:
    """A printed time can be parsed again."""
    for at_ms in (0, -1, MIDNIGHT, MIDNIGHT + 7, -62_135_596_800_000, 253_402_300_799_999):
        assert time(format_time(at_ms).replace(" ", "T")) == at_ms
    assert (format_time(None), format_time(2**53 - 1), format_time(-(2**53))) == ("-", str(2**53 - 1), str(-(2**53)))
    texts = [format_duration(ms) for ms in (-5, 0, 999, 1000, 60_000, 61_500, 3_600_000, 3_660_000, 90_061_000)]
    assert texts == ["0 ms", "0 ms", "999 ms", "1 s", "1 min", "1 min 1 s", "1 h", "1 h 1 min", "1 d 1 h"]
