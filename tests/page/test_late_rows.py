"""Late rows on the page of a job: numbers, substreams and times."""

import re
from random import Random

import httpx
from playwright.sync_api import expect

from tests.page.conftest import open_job
from tests.support.api import BASE, FRAMES, HOUR, commit_rows, create
from tests.support.browser import PHONE, Visitor, shoot
from tidegate.page.charts import MIN_SHARE, late_chart
from tidegate.views.late import LateHour
from tidegate_spark.testing import CoordinatorProcess

FIRST = BASE // HOUR


def hour(at: int, rows: int, updated: int = 0, dropped: int = 0, diverted: int = 0) -> LateHour:
    return LateHour(start=at * HOUR, rows=rows, updated=updated, dropped=dropped, diverted=diverted)


def test_each_hour_with_late_rows_has_a_bar() -> None:
    drawn = late_chart(
        [hour(0, 100), hour(1, 200, dropped=10, diverted=20, updated=10), hour(3, 50, dropped=10), hour(4, 9)]
    )
    assert drawn is not None
    assert (drawn.first, drawn.last, drawn.highest, drawn.width) == (0, 5 * HOUR, 0.2, 18.0)
    assert [(bar.start, bar.x, bar.title, bar.parts) for bar in drawn.bars] == [
        (
            HOUR,
            20.0,
            "10 dropped, 20 diverted, 10 updated of 200 rows",
            (("dropped", 75.0, 25.0), ("diverted", 25.0, 50.0), ("updated", 0.0, 25.0)),
        ),
        (3 * HOUR, 60.0, "10 dropped of 50 rows", (("dropped", 0.0, 100.0),)),
    ]
    assert late_chart([hour(0, 100)]) is None
    assert late_chart([]) is None
    little = late_chart([hour(0, 10_000, dropped=1)])
    assert little is not None
    assert little.highest == MIN_SHARE
    far = late_chart([hour(0, 10, dropped=1), hour(10**8, 10, dropped=1)])
    assert far is not None
    assert [bar.x for bar in far.bars] == [0.0, 50.0], "bars of hours that are centuries apart are drawn side by side"


def test_dropped_rows_are_on_the_page(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    create(http, job_name, **FRAMES)
    path = f"/v1/jobs/{job_name}"
    page = open_job(visitor, tidegate, job_name)
    section = page.locator("#late")
    expect(section).to_contain_text("No committed rows yet. Only batches count rows.")
    commit_rows(http, path, 0, substreams=["HNL"], on_time=[1000], hours=[[[FIRST, 1000, 0, 0]]])
    expect(section).to_contain_text("None of 1,000 rows are late.")
    chance = Random(2)  # noqa: S311 - the same picture each time
    for at in range(1, 40):
        lost = {4: 8, 5: 1, 23: 15}.get(at, 0)
        rows = 150 + chance.randrange(300)
        commit_rows(
            http,
            path,
            at,
            substreams=["HNL", "<b>SFO</b>"],
            on_time=[rows, rows],
            late=[lost, at % 3],
            updated=[at % 5, 0],
            late_disposition="diverted" if at > 30 else "dropped",
            hours=[
                [[FIRST + at, rows + lost + at % 5, at % 5, lost]],
                [[FIRST + at, rows + at % 3, 0, at % 3]],
            ],
        )
    expect(section).to_contain_text("HNL of q: ")
    expect(section).to_contain_text("between 2013-01-07 14:00:00Z and 2013-01-07 16:00:00Z.")
    expect(section).to_contain_text("<b>SFO</b> of q")
    most = re.compile(r"Most lost rows by hour of event time: 2013-01-07 14:00:00Z \d+ of [\d,]+, ")
    expect(page.locator("#headline")).to_contain_text(most)
    labels = section.locator("svg.bars svg text").all_text_contents()
    assert labels == ["12:00", "8 Jan", "12:00", "9 Jan"]
    section.locator("g[data-tip]").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("2013-01-07 11:00:00Z: 1 dropped")
    assert section.locator("rect.dropped").count() == 20
    assert section.locator("rect.diverted").count() > 3
    shoot(visitor, f"{tidegate.url}/jobs/{job_name}", "job-late", "#connection.on")
    shoot(visitor, f"{tidegate.url}/jobs/{job_name}", "phone-late", "#connection.on", viewport=PHONE, is_mobile=True)
