"""The calendar of frames on the page of a job."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx
from playwright.sync_api import expect

from tests.page.conftest import open_job
from tests.support.api import BASE, HOUR, HOURS, commit_frames, create
from tests.support.browser import PHONE, Visitor
from tests.support.site import Site
from tidegate.domain.completeness import HourCounts
from tidegate.domain.frames import FrameStatus, Prediction, frame_status
from tidegate.page.calendar import ROWS_SHOWN, calendar
from tidegate_spark.testing import CoordinatorProcess


def frame(start: int, end: int) -> FrameStatus:
    return frame_status(start, end, "open", None, HourCounts(), (), None, None)


def shape(starts: list[int], **declaration: Any) -> list[tuple[str, int, int]]:
    """Return the label, the gap and the number of cells of each row."""
    frames = [frame(start, end) for start, end in zip(starts, [*starts[1:], starts[-1] + HOUR], strict=True)]
    return [
        (row.label, row.before, len(row.cells)) for row in calendar(frames, {"every": "hour"} | declaration, 0, None)
    ]


def test_hours_are_in_rows_of_days() -> None:
    assert shape([BASE + at * HOUR for at in range(20)]) == [("8 Jan", 0, 6), ("7 Jan", 10, 14)]
    assert len(shape([BASE + at * HOUR for at in range(24 * 20)])) == ROWS_SHOWN


def test_days_are_in_rows_of_months_of_their_time_zone() -> None:
    zone = "Pacific/Auckland"
    days = [datetime(2013, month, day, tzinfo=ZoneInfo(zone)) for month, day in ((1, 30), (1, 31), (2, 1))]
    starts = [int(day.timestamp() * 1000) for day in days]
    assert shape(starts, every="day", time_zone=zone) == [("Feb 2013", 0, 1), ("Jan 2013", 29, 2)]
    months = [int(datetime(2013, month, 1, tzinfo=UTC).timestamp() * 1000) for month in (3, 4)]
    assert shape(months, every="month") == [("2013", 2, 2)]


def test_numbers_that_are_no_times_are_in_one_row() -> None:
    assert shape([-(2**53) + 1, 0, 2**53 - 1], every=2**52) == [("", 0, 1), ("1 Jan", 0, 1), ("", 0, 1)]


def test_a_frame_opens_its_record(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    create(http, job_name, **HOURS)
    path = f"/v1/jobs/{job_name}"
    commit_frames(http, path, 0, {"a": BASE, "b": BASE})
    http.post(f"{path}/substreams:idle", json={"query": "q", "substreams": ["b"], "reason": "t"}).raise_for_status()
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    outputs = [{"table": "lake.db.hours", "version": "5937117119577207001"}]
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3, outputs=outputs)
    page = open_job(visitor, tidegate, job_name)
    section = page.locator("#frames")
    cells = section.locator(".frame")
    expect(cells).to_have_count(2)
    section.get_by_role("link", name="2013-01-07 10:00:00Z to 2013-01-07 11:00:00Z is complete with exclusions").click()
    expect(section).to_contain_text("Without q/b (idle)")
    expect(section).to_contain_text("lake.db.hours @ 5937117119577207001")
    expect(section.locator("tbody tr")).to_have_count(2)
    expect(section.locator("tbody tr").first).to_contain_text("+3")
    expect(section.locator("[aria-current]")).to_have_class("frame complete_with_exclusions corrected")
    commit_frames(http, path, 3, {"a": BASE + 2 * HOUR + 11})
    expect(cells).to_have_count(3)
    section.get_by_role("link", name="Close").click()
    expect(section).not_to_contain_text("Without q/b")
    phone = open_job(visitor, tidegate, job_name, f"?frame={BASE}", viewport=PHONE, is_mobile=True)
    expect(phone.locator("#frames")).to_contain_text("Without q/b (idle)")


def test_an_overdue_frame_is_marked() -> None:
    late = Prediction(BASE + 3 * HOUR, BASE + 2 * HOUR, True, 28, "hour_of_day")
    [row] = calendar([replace(frame(BASE, BASE + HOUR), prediction=late)], {"every": "hour"}, BASE + 3 * HOUR, None)
    [cell] = row.cells
    assert cell.state == "overdue"
    assert cell.text.endswith(
        "Overdue since 2013-01-07 12:00:00Z: 95 of 100 such frames were complete by then (learned from 28 frames). "
        "Expected 2013-01-07 13:00:00Z."
    )


def test_the_calendar_says_when_hours_will_be_complete(site: Site, visitor: Visitor) -> None:
    """HNL has not reported for six hours, and no earlier hour was that late."""
    section = site.open(visitor, "hourly").locator("#frames")
    expect(section).to_contain_text("were complete by the time predicted for 95 %")
    overdue = section.locator(".frame.overdue")
    expect(overdue.first).to_have_attribute(
        "data-tip", re.compile(r"Overdue since .* \(learned from 28 frames\)\. No time is expected")
    )
    assert 3 <= overdue.count() <= 9
    overdue.first.click()
    expect(section).to_contain_text("(overdue)")
    expect(section).to_contain_text("28 frames")


def test_a_job_without_frames_has_no_calendar(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    create(http, job_name)
    page = open_job(visitor, tidegate, job_name, f"?frame={BASE}")
    expect(page.locator("#frames")).to_be_hidden()
