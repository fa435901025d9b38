"""The health of a job."""

from dataclasses import replace

import pytest

from tidegate.domain.completeness import NO_ROWS
from tidegate.domain.results import Holder, JobWatermark
from tidegate.domain.views import LONG_MS, WORST_FIRST, JobSummary, health

NOW, STALE_MS, MAX_LAG_MS = 10_000_000, 300_000, 1000
LAGGING = {"watermark": NOW - MAX_LAG_MS - 1}
ANSWER = JobWatermark(1, "e", NOW, 500, 500, 500, None, False, None)
SUMMARY = JobSummary(600, 550, 2, 0, 0, 0, False, NO_ROWS, 0, 0, 1, 0, NOW - 1, 0, {}, (), ())


def held(reason: str, last_event_ms: int | None = None, begun_ms: int | None = None) -> Holder:
    return Holder(reason, "q", "s", 1, "h", 0, last_event_ms, begun_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "summary", "expected"),
    [
        ({"complete": True}, {"last_contact_ms": 0}, "complete"),
        ({}, {"last_contact_ms": NOW - STALE_MS}, "stale"),
        ({}, {"last_contact_ms": NOW - STALE_MS + 1}, "running"),
        ({}, {"last_contact_ms": NOW - STALE_MS, "open_batches": 1}, "running"),
        ({"watermark": None}, {"last_contact_ms": NOW - STALE_MS}, "stale"),
        ({"watermark": None}, {"active": 0, "last_contact_ms": None}, "empty"),
        ({"watermark": None}, {"active": 0, "last_contact_ms": None, "missing_queries": ("q",)}, "no_watermark"),
        ({"watermark": None}, {"active": 0, "open_batches": 1}, "no_watermark"),
        ({"watermark": None, "held_by": held("hold")}, {}, "no_watermark"),
        ({}, {"all_idle": True}, "all_idle"),
        ({"held_by": held("hold")}, {"all_idle": True}, "held"),
        ({"held_by": held("missing_query")}, {}, "held"),
        ({"held_by": held("blocked", NOW)}, {}, "held"),
        ({"held_by": held("never_reported", NOW)}, {}, "held"),
        ({"held_by": held("slow", NOW - LONG_MS)}, {}, "held"),
        ({"held_by": held("slow", NOW - LONG_MS + 1)}, {}, "running"),
        ({"held_by": held("open_batch", None, NOW - LONG_MS)}, {}, "held"),
        ({"held_by": held("open_batch", None, NOW - LONG_MS + 1)}, {}, "running"),
    ],
)
def test_health_of_a_job(answer: dict[str, object], summary: dict[str, object], expected: str) -> None:
    state, of_job = replace(ANSWER, **answer), replace(SUMMARY, **summary)  # type: ignore[arg-type]
    assert health(state, of_job, STALE_MS, None) == expected


@pytest.mark.parametrize(
    ("answer", "summary", "expected"),
    [
        ({"watermark": NOW - MAX_LAG_MS}, {}, "running"),
        (LAGGING, {}, "lagging"),
        (LAGGING, {"all_idle": True}, "lagging"),
        (LAGGING | {"held_by": held("slow", NOW)}, {}, "lagging"),
        (LAGGING | {"held_by": held("hold")}, {}, "held"),
        (LAGGING | {"held_by": held("slow", NOW - LONG_MS)}, {}, "held"),
        (LAGGING, {"last_contact_ms": NOW - STALE_MS}, "stale"),
        (LAGGING | {"complete": True}, {}, "complete"),
        ({"watermark": None}, {}, "no_watermark"),
    ],
)
def test_health_of_a_job_with_a_max_lag(answer: dict[str, object], summary: dict[str, object], expected: str) -> None:
    state, of_job = replace(ANSWER, **answer), replace(SUMMARY, **summary)  # type: ignore[arg-type]
    assert health(state, of_job, STALE_MS, MAX_LAG_MS) == expected


def test_the_worst_health_comes_first() -> None:
    assert WORST_FIRST[:4] == ("stale", "held", "lagging", "no_watermark") and WORST_FIRST[-1] == "complete"
