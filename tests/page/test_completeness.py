"""The completeness curve on the page of a job, with the lag in force and the recommended lag."""

from collections import Counter
from random import Random

import httpx
from playwright.sync_api import expect

from tests.page.conftest import open_job
from tests.support.api import BASE, FRAMES, HOUR, create, report
from tests.support.browser import PHONE, Visitor, shoot
from tidegate.domain.completeness import bucket_of
from tidegate.page.charts import completeness_chart
from tidegate.views.completeness import Completeness, CompletenessPoint
from tidegate_spark.testing import CoordinatorProcess

MINUTE = 60_000
AIM = {"type": "target_completeness", "target": 0.99, "cold_start_lag_ms": 2 * HOUR, "ceiling_ms": 12 * HOUR}


def delayed(http: httpx.Client, job: str, rows: int, mean: int) -> None:
    chance = Random(5)  # noqa: S311 - the same picture each time
    delays = [*Counter(bucket_of(int(chance.expovariate(1 / mean))) for _ in range(rows)).items()]
    for step in range(3):
        body = {
            "substreams": ["HNL"],
            "max_event_times": [BASE + step * HOUR],
            "delays": [delays if step == 1 else None],
        }
        http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()


def known(**but: object) -> Completeness:
    shares = [(0, 0.6), (10, 0.9), (100, 0.99), (1000, 1.0)]
    points = [CompletenessPoint(lag_ms=lag, completeness=share, latency_ms=None) for lag, share in shares]
    fields = {
        "job": "j",
        "incarnation": 1,
        "state_epoch": "",
        "now_ms": 0,
        "watermark": None,
        "coalesced_watermark": None,
        "written_watermark": None,
        "written_held_by": None,
        "complete": False,
        "watermark_token": "",
        "held_by": None,
        "rows": 10,
        "relative_error": 0.01,
        "lag_ms": 20,
        "wait_ms": None,
        "target": None,
        "recommended_lag_ms": None,
        "achieved": None,
        "quantiles": [],
        "points": points,
    }
    return Completeness.model_validate(fields | but)


def test_the_chart_includes_all_marked_values() -> None:
    drawn = completeness_chart(known())
    assert drawn is not None
    # The lag axis ends a quarter beyond the lag at which nearly all rows are on time. The share axis starts at a
    # multiple of a tenth.
    assert drawn.lags == ((0, 0.0), (500, 40.0), (1000, 80.0))
    assert drawn.shares == ((0.6, 100.0), (0.8, 50.0), (1.0, 0.0))
    assert drawn.points.split(" ")[:3] == ["0.0,100.0", "0.8,100.0", "0.8,25.0"]
    assert drawn.points.split(" ")[-1] == "100.0,0.0"
    assert (drawn.in_force, drawn.recommended, drawn.target, drawn.achieved) == (1.6, None, None, None)
    far = completeness_chart(known(lag_ms=4000, target=0.9, recommended_lag_ms=10, achieved=0.5))
    assert far is not None
    assert (far.lags[-1], far.in_force, far.recommended) == ((4000, 80.0), 80.0, 0.2)
    assert (far.target, far.achieved) == (25.0, None)  # a share below the lowest drawn share is omitted
    assert completeness_chart(known(points=[])) is None
    years = completeness_chart(known(lag_ms=10**12))
    assert years is not None and 3 <= len(years.lags) <= 5


def test_the_curve_is_on_the_page(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    create(http, job_name, policy=AIM, **FRAMES)
    page = open_job(visitor, tidegate, job_name)
    section = page.locator("#completeness")
    expect(section).to_contain_text("the lag is the cold start lag, 2 h")
    delayed(http, job_name, 2000, 30 * MINUTE)
    expect(section.locator("polyline")).to_be_attached()  # without a reload
    expect(section).to_contain_text("target99 %")
    expect(section).to_contain_text("share by lag, of the last 2,000 rows")
    expect(page.locator("#facts")).to_contain_text("target completeness 99 %")
    shoot(visitor, f"{tidegate.url}/jobs/{job_name}", "job-completeness", "#connection.on")
    shoot(
        visitor,
        f"{tidegate.url}/jobs/{job_name}",
        "phone-completeness",
        "#connection.on",
        viewport=PHONE,
        is_mobile=True,
    )


def test_without_delays_the_page_says_how_to_report_them(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    create(http, job_name, **FRAMES)
    report(http, job_name, {"BOS": BASE})
    page = open_job(visitor, tidegate, job_name)
    expect(page.locator("#completeness")).to_contain_text("In Spark, call Stream.measure_delays")
