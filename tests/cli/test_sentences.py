"""The sentences that describe a job's status, records and late rows."""

from typing import Any

import pytest

from tidegate.views.sentences import (
    late_span_sentence,
    percent,
    plain_text,
    record_details,
    share_text,
    status_sentence,
)

NOW, W = 1_357_552_900_000, 1_357_552_800_000
HELD: dict[str, Any] = {
    "reason": "slow",
    "query": "departures",
    "substream": "ANC",
    "batch_id": None,
    "hold": None,
    "since_ms": NOW - 1,
    "last_event_ms": NOW - 48_000,
    "begun_ms": None,
}


def status_text(held_by: dict[str, Any] | None, *until: tuple[str, int, bool], **more: Any) -> str:
    limits = [
        {"limit": limit, "at_ms": at_ms, "needs_query_report": needs_query_report}
        for limit, at_ms, needs_query_report in until
    ]
    answer: dict[str, Any] = {"watermark": W, "complete": False, "now_ms": NOW, "held_by": held_by}
    held = [] if held_by is None else [{**held_by, "until": limits}]
    return plain_text(status_sentence(answer | {"holders": held} | more), NOW)


@pytest.mark.parametrize(
    ("held_by", "until", "says"),
    [
        (
            {},
            [("idle_timeout_ms", NOW + 12_000, False)],
            "ANC of departures, silent for 48 s; it becomes idle in 12 s.",
        ),
        (
            {},
            [("idle_timeout_ms", NOW + 12_000, True)],
            "ANC of departures, silent for 48 s; it becomes idle in 12 s, if its query confirms that it has no data.",
        ),
        ({"last_event_ms": NOW - 4_999, "query": ""}, [], "ANC, the slowest substream."),
        (
            {"last_event_ms": NOW - 4_999},
            [("idle_timeout_ms", NOW + 7_001, False), ("max_retention_ms", NOW + 9_000, False)],
            "ANC of departures, the slowest substream; retention excludes it in 9 s.",
        ),
        (
            {},
            [("max_retention_ms", NOW + 1000, False)],
            "ANC of departures, silent for 48 s; retention excludes it in 1 s.",
        ),
        (
            {"reason": "blocked"},
            [("idle_timeout_ms", NOW - 1, True)],
            "ANC of departures, silent for 48 s; it becomes idle as soon as its query confirms that it has no data.",
        ),
        (
            {"reason": "blocked"},
            [],
            "ANC of departures, silent for 48 s; its query has not confirmed that it has no data.",
        ),
        ({"reason": "never_reported"}, [], "ANC of departures, which has no events yet."),
        (
            {"reason": "missing_query", "substream": None},
            [("query_timeout_ms", NOW + 60_000, False)],
            "the query departures, which is expected and has no substreams yet; the watermark advances without it "
            "in 1 min.",
        ),
        (
            {"reason": "slow", "last_event_ms": NOW - 60_000},
            [("idle_timeout_ms", NOW + 9_000, False)],
            "ANC of departures, silent for 1 min; it becomes idle in 9 s.",
        ),
        (
            {"reason": "open_batch", "substream": None, "batch_id": 7, "begun_ms": NOW - 61_000},
            [("max_batch_hold_ms", NOW + 9_000, False)],
            "batch 7 of departures, open for 1 min 1 s; the watermark advances without it in 9 s.",
        ),
        (
            {"reason": "hold", "query": "", "substream": None, "hold": "audit"},
            [("expires_ms", NOW + 3_600_000, False)],
            "the hold audit, set by an operator; the hold expires in 1 h.",
        ),
    ],
)
def test_held(held_by: dict[str, Any], until: list[tuple[str, int, bool]], says: str) -> None:
    may_move_soon = held_by.get("reason", "slow") == "slow" and held_by.get("last_event_ms") != NOW - 60_000
    start = "Complete up to 2013-01-07 10:00:00Z; held by" if may_move_soon else "Held at 2013-01-07 10:00:00Z by"
    assert status_text(HELD | held_by, *until) == f"{start} {says}"
    assert status_text(HELD | held_by, *until, watermark=None) == f"No watermark yet: held by {says}"


def test_a_batch_that_began_a_moment_ago_holds_like_a_slow_substream() -> None:
    """The first words agree with the health: a job whose watermark may move soon is not held."""
    held_by = HELD | {"reason": "open_batch", "substream": None, "batch_id": 7, "begun_ms": NOW - 59_999}
    says = "Complete up to 2013-01-07 10:00:00Z; held by batch 7 of departures, open for 59 s."
    assert status_text(held_by) == says


def test_the_reason_of_a_hold() -> None:
    """A sentence about a hold includes its reason, if the record has the holds of the job."""
    held_by = HELD | {"reason": "hold", "query": "", "substream": None, "hold": "audit"}
    holds = [{"hold": "other", "reason": "migration"}, {"hold": "audit", "reason": "quarter close"}]
    says = "by the hold audit (quarter close), set by an operator."
    assert status_text(held_by, holds=holds) == f"Held at 2013-01-07 10:00:00Z {says}"
    assert status_text(HELD, holds=holds).endswith("by ANC of departures, silent for 48 s.")


def test_not_held() -> None:
    counts = {"active": 0, "idle": 2, "done": 0, "all_idle": True}
    assert status_text(None) == "Complete up to 2013-01-07 10:00:00Z; nothing holds it."
    assert status_text(None, substreams=counts).endswith(": all substreams are idle.")
    assert status_text(None, substreams=counts | {"idle": 0}, watermark=None) == "No data reported yet."
    assert status_text(None, watermark=None) == "No watermark yet; nothing holds it."
    assert status_text(None, complete=True) == "Complete: the input has ended at 2013-01-07 10:00:00Z."
    assert status_text(None, complete=True, watermark=None) == "Complete: the input has ended."


def test_the_details_of_a_record() -> None:
    """The details omit absent members. A substream without a query is named alone."""

    def details_text(**record: Any) -> str:
        return plain_text(record_details({"kind": "action", **record}), NOW)

    assert (
        details_text(substreams=["/a", "q/b"], count=5, actor="me", reason="why") == "a, q/b and 3 more; by me; (why)"
    )
    assert details_text(
        kind="emission", watermark=W, held_by="slow", query="q", substream="s", limits=[{"limit": "x", "count": 2}]
    ) == ("2013-01-07 10:00:00Z; held by s of q; x passed 2")
    assert details_text(hold="h", at_most=W) == "hold h; at most 2013-01-07 10:00:00Z"
    assert details_text() == ""


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (0, "0 %"),
        (1e-9, "less than 0.01 %"),
        (0.0001, "0.01 %"),
        (0.03, "3 %"),
        (0.02982, "2.98 %"),
        (0.5, "50 %"),
        (0.99999, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_only_exact_shares_are_0_or_100_percent(share: float, says: str) -> None:
    assert share_text(share) == says


@pytest.mark.parametrize(("share", "says"), [(0.5, "50 %"), (0.9999999, "99.9999 %"), (1, "100 %")])
def test_only_a_complete_table_is_at_100_percent(share: float, says: str) -> None:
    assert percent(share) == says


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"dropped": 3000, "diverted": 0}, "HNL: 3,000 rows dropped between"),
        ({"dropped": 0, "diverted": 1}, "HNL: 1 row diverted between"),
        ({"dropped": 2, "diverted": 1}, "HNL: 2 rows dropped and 1 diverted between"),
    ],
)
def test_late_rows_without_a_total_are_a_sentence(counts: dict[str, int], says: str) -> None:
    span = {"query": "", "substream": "HNL", "start": W, "end": W + 3_600_000, "rows": None, "updated": 0} | counts
    assert plain_text(late_span_sentence(span), NOW) == f"{says} 2013-01-07 10:00:00Z and 2013-01-07 11:00:00Z."


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"dropped": 3, "diverted": 0}, "HNL of q: 3 of 100 rows (3 %) dropped between"),
        ({"dropped": 0, "diverted": 1}, "HNL of q: 1 of 100 rows (1 %) diverted between"),
        ({"dropped": 2, "diverted": 1}, "HNL of q: 2 of 100 rows (2 %) dropped and 1 (1 %) diverted between"),
    ],
)
def test_late_rows_are_a_sentence(counts: dict[str, int], says: str) -> None:
    span = {"query": "q", "substream": "HNL", "start": W, "end": W + 7_200_000, "rows": 100, "updated": 0} | counts
    assert plain_text(late_span_sentence(span), NOW) == f"{says} 2013-01-07 10:00:00Z and 2013-01-07 12:00:00Z."
