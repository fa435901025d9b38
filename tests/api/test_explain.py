"""`:explain` lists what holds the watermark, and until when."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.support.api import RUN, commit_frames


def get_explanation(http: httpx.Client, path: str, **query: Any) -> dict[str, Any]:
    answer = http.get(f"{path}:explain", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def report(http: httpx.Client, path: str, **max_event_times: int) -> None:
    body = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())}
    assert http.post(f"{path}:report", json=body).status_code == 200


def described(page: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (one["reason"], one["substream"] or one["query"] or one["hold"], one["watermark_without"])
        for one in page["holders"]
    ]


def test_holders_are_listed_from_lowest_to_highest(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    report(http, path, a=100, b=200, c=300, d=400)
    page = get_explanation(http, path)
    assert (page["watermark"], described(page)) == (90, [("slow", "a", 190), ("slow", "b", 290), ("slow", "c", 390)])
    assert page["holders"][0]["since_ms"] == page["held_by"]["since_ms"]
    assert (page["holders"][0]["until"], page["next_step"]) == ([], None)
    assert described(get_explanation(http, path, limit=1)) == [("slow", "a", 190)]
    http.post(f"{path}/substreams:evict", json={"query": "", "substreams": ["a"]})
    assert get_explanation(http, path)["watermark"] == 190
    assert http.get(f"{path}:explain", params={"limit": 0}).status_code == 422


def test_every_kind_of_holder_is_named(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job(expected_queries=["payments"])
    report(http, path, a=1000)
    http.put(f"{path}/queries/orders/batches/0", json=RUN)
    http.post(f"{path}:declare", json={"query": "orders", "substreams": ["x"]})
    http.post(f"{path}/holds", json={"hold": "h", "at_most": 500, "duration_ms": 3_600_000, "reason": "r"})
    page = get_explanation(http, path, limit=10)
    assert described(page) == [
        ("never_reported", "x", None),
        ("missing_query", "payments", None),
        ("open_batch", "orders", 500),
        ("hold", "h", 990),
        ("slow", "a", 990),
    ]
    batch, hold = page["holders"][2], page["holders"][3]
    assert batch["begun_ms"] <= page["now_ms"] and batch["batch_id"] == 0
    assert [until["limit"] for until in hold["until"]] == ["expires_ms"]
    assert 0 < hold["until"][0]["at_ms"] - page["now_ms"] <= 3_600_000


def test_each_holder_lists_its_limits(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job(idle_timeout_ms=60_000, query_timeout_ms=90_000, max_batch_hold_ms=30_000, max_retention_ms=120_000)
    begun = http.put(f"{path}/queries/q/batches/0", json=RUN).json()["now_ms"]
    batch = {"query": "q", **RUN, "batch_id": 0, "partition": 0}
    http.post(f"{path}:report", json={"substreams": ["a", "b"], "max_event_times": [100, 900], "batch": batch})
    first = get_explanation(http, path)
    assert [(one["reason"], one["begun_ms"]) for one in first["holders"]] == [("open_batch", begun)]
    assert [(one["limit"], one["at_ms"]) for one in first["holders"][0]["until"]] == [
        ("max_batch_hold_ms", begun + 30_000)
    ]
    committed = http.post(f"{path}/queries/q/batches/0:commit", json=RUN).json()["now_ms"]
    http.put(f"{path}/queries/q/batches/1", json=RUN)
    time.sleep(0.02)
    page = get_explanation(http, path)
    (slow, *_) = page["holders"]
    until = {one["limit"]: (one["at_ms"], one["needs_query_report"]) for one in slow["until"]}
    assert slow["reason"] == "slow" and slow["last_event_ms"] == committed
    assert until["idle_timeout_ms"] == (committed + 60_000, True)
    assert until["query_timeout_ms"][0] >= committed + 90_000
    assert committed + 100_000 <= until["max_retention_ms"][0] <= page["now_ms"] + 130_000


def test_a_waiting_throttle_is_shown(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """No substream delays the watermark; the throttle waits for the next window boundary."""
    path = make_job(throttle={"type": "frame", "size_ms": 100, "slide_ms": 100, "offset_ms": 0})
    report(http, path, a=230, b=260)
    page = get_explanation(http, path)
    assert (page["watermark"], page["next_step"]) == (200, 300)
    assert described(page) == [("slow", "a", 200), ("slow", "b", 200)]


def test_a_job_without_holders(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    assert get_explanation(http, path)["holders"] == []
    report(http, path, a=100)
    http.post(f"{path}:complete", json={})
    assert get_explanation(http, path)["holders"] == []
    assert http.get("/v1/jobs/nowhere:explain").json()["code"] == "job_not_found"


def test_substreams_far_behind_the_median_are_skewed(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """The status counts them, the table lists them, and the explanation says how far behind they are."""
    path = make_job(max_skew_ms=1000)
    report(http, path, a=5010, b=5510, c=6010, d=4009)
    assert get_explanation(http, path)["passed"] == [
        {
            "limit": "max_skew_ms",
            "limit_ms": 1000,
            "reference": 5000,
            "count": 1,
            "substreams": [{"query": "", "substream": "d", "behind_ms": 1001}],
        }
    ]
    page = http.get(path).json()
    assert (page["watermark"], page["substreams"]["active"], page["substreams"]["skewed"]) == (5000, 3, 1)
    [row] = http.get(f"{path}/substreams", params={"state": "skewed"}).json()["substreams"]
    assert (row["substream"], row["state"], row["since_ms"], row["skew"]) == ("d", "skewed", None, 1001)
    report(http, path, d=4010)
    page = get_explanation(http, path)
    assert (page["passed"], page["watermark"], page["held_by"]["substream"]) == ([], 5000, "d")
    records = http.get(f"{path}/history").json()["records"]
    limits = [limit for record in records for limit in record.get("limits", ())]
    assert [(limit["limit"], limit["substreams"]) for limit in limits] == [("max_skew_ms", ["/d"])]


def test_silent_substreams_are_not_waited_for_longer_than_rows_take_to_arrive(
    http: httpx.Client, make_job: Callable[..., str]
) -> None:
    """The status has the delay and the share in time, and the explanation the substreams that are passed."""
    hour = 3_600_000
    path = make_job(frames={"every": 60_000}, arrival_target=0.9, max_arrival_delay_ms=hour)
    now_ms = http.get(path).json()["now_ms"]
    commit_frames(http, path, 0, {"fast": now_ms - 1000, "silent": now_ms - 2 * hour})
    commit_frames(http, path, 1, {"fast": now_ms})
    status, page = http.get(path).json(), get_explanation(http, path)
    arrivals = status["arrivals"]
    assert now_ms <= arrivals["proven_ms"] <= status["now_ms"]
    assert arrivals | {"proven_ms": 0} == {
        "target": 0.9,
        "delay_ms": hour,
        "is_learned": False,
        "proven_ms": 0,
        "bound": arrivals["proven_ms"] - hour,
        "rows": 1,
        "late": 0,
    }
    assert status["coalesced_watermark"] == arrivals["bound"]
    [passed] = page["passed"]
    assert (passed["limit"], passed["limit_ms"], passed["reference"]) == ("arrival_target", hour, arrivals["proven_ms"])
    assert [each["substream"] for each in passed["substreams"]] == ["silent"]
    assert status["limits"]["arrival_target"] == 1
    refused = http.put(path, json={"policy": status["config"]["policy"], "arrival_target": 0.9})
    assert refused.status_code == 422
    assert "declare frames" in refused.text


def test_what_a_limit_on_skew_would_do(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    report(http, path, a=5010, b=5510, c=6010, d=4009)
    page = get_explanation(http, path, what_if_max_skew_ms=1000)
    found = page["what_if_max_skew"]
    assert (page["watermark"], found["coalesced_watermark"], found["passed"]["count"]) == (3999, 5000, 1)
    assert get_explanation(http, path)["what_if_max_skew"] is None
    assert get_explanation(http, path, what_if_max_skew_ms=2000)["what_if_max_skew"]["passed"] is None
    assert get_explanation(http, path, what_if_arrival_target=0.9)["what_if_arrival_target"] is None, "no frames"


def test_what_a_target_would_have_done(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """Arrival delays are measured with frames, also without a target."""
    path = make_job(frames={"every": 50}, max_arrival_delay_ms=150, policy={"type": "limiting_lag", "lag_ms": 0})
    until = time.monotonic() + 30
    number, found = 0, dict[str, Any](delay_ms=None)
    while found["delay_ms"] is None and time.monotonic() < until:
        now_ms = http.get(path).json()["now_ms"]
        commit_frames(http, path, number, {"a": now_ms, "b": now_ms - 20})
        number += 1
        found = get_explanation(http, path, what_if_arrival_target=0.5)["what_if_arrival_target"]
    assert found["delay_ms"] is not None
    assert found["delay_ms"] <= 150
    assert found["measured"] >= found["needed"] == 2
    assert http.get(path).json()["arrivals"] is None
