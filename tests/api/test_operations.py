"""Operations on a job over HTTP: their answers and refusals."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import CONFIG, RUN

Make = Callable[..., str]


def report(http: httpx.Client, path: str, **times: int) -> dict[str, Any]:
    answer = http.post(f"{path}:report", json={"substreams": list(times), "max_event_times": list(times.values())})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def post(http: httpx.Client, url: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = http.post(url, json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def begin(http: httpx.Client, path: str, query: str, batch: int, **body: Any) -> httpx.Response:
    return http.put(f"{path}/queries/{query}/batches/{batch}", json=RUN | body)


def stage(http: httpx.Client, path: str, query: str, batch: int, partition: int = 0, **columns: Any) -> dict[str, Any]:
    reference = {"query": query, **RUN, "batch_id": batch, "partition": partition}
    return post(http, f"{path}:report", batch=reference, **columns)


def test_an_idle_substream_does_not_hold_until_it_reports(http: httpx.Client, make_job: Make) -> None:
    """An operator can mark a substream as idle before its timeout."""
    path = make_job()
    report(http, path, a=100, b=30)
    result = post(http, f"{path}/substreams:idle", substreams=["b"], reason="switched off")
    assert (result["applied"], result["watermark"]) == (True, 90)
    assert post(http, f"{path}/substreams:idle", substreams=["b"])["applied"] is False
    assert report(http, path, b=101)["held_by"]["substream"] == "a"
    assert post(http, f"{path}/substreams:idle", 404, substreams=["c"])["code"] == "substream_not_found"
    post(http, f"{path}/substreams:done", substreams=["b"])
    assert post(http, f"{path}/substreams:idle", 409, substreams=["b"])["code"] == "substream_done"


def test_an_evicted_substream_is_forgotten(http: httpx.Client, make_job: Make) -> None:
    """An evicted substream does not hold the watermark and is not listed."""
    path = make_job()
    report(http, path, a=100, b=30)
    assert post(http, f"{path}/substreams:evict", substreams=["b"], reason="sold")["watermark"] == 90
    assert post(http, f"{path}/substreams:evict", substreams=["b"])["applied"] is False
    assert [row["substream"] for row in http.get(f"{path}/substreams").json()["substreams"]] == ["a"]


def test_a_hold_keeps_the_watermark_until_it_is_released(http: httpx.Client, make_job: Make) -> None:
    """An operator who repairs data can keep consumers from closing the affected windows."""
    path = make_job()
    post(http, f"{path}/holds", 422, at_most=50)  # the reason is required
    held = post(http, f"{path}/holds", at_most=50, reason="repairing the 3rd of May", hold="repair")
    assert (held["hold"], held["applied"]) == ("repair", True)
    assert post(http, f"{path}/holds", at_most=50, reason="again", hold="repair")["applied"] is False
    assert post(http, f"{path}/holds", 409, at_most=60, reason="other", hold="repair")["code"] == "hold_exists"
    result = report(http, path, a=100)
    assert (result["watermark"], result["held_by"]["reason"], result["held_by"]["hold"]) == (50, "hold", "repair")
    assert http.get(path).json()["holds"][0]["reason"] == "repairing the 3rd of May"
    assert post(http, f"{path}:complete", 409)["code"] == "hold_active"
    assert http.delete(f"{path}/holds/repair").json()["watermark"] == 90
    assert http.delete(f"{path}/holds/repair").json()["code"] == "hold_not_found"


def test_a_hold_with_a_duration_expires(http: httpx.Client, make_job: Make) -> None:
    """A hold with a duration expires without a call to release it."""
    path = make_job()
    post(http, f"{path}/holds", at_most=50, reason="for a moment", duration_ms=1)
    report(http, path, a=100)
    waited = http.get(f"{path}/watermark", params={"at_least": 90, "timeout_s": 20}).json()
    assert waited["reached"]


def test_a_reset_starts_again_and_ignores_old_tokens(http: httpx.Client, make_job: Make) -> None:
    """Only a reset lowers a watermark that a wrong event time has advanced too far."""
    path = make_job(max_future_skew_ms=None)
    poisoned = report(http, path, a=10**15)
    post(http, f"{path}:reset", reason="a clock in 33658")
    status = http.get(path).json()
    assert (status["watermark"], status["substreams"]["active"]) == (None, 0)
    assert status["state_epoch"] != poisoned["state_epoch"]
    body = {"substreams": ["a"], "max_event_times": [100], "watermark_token": poisoned["watermark_token"]}
    assert http.post(f"{path}:report", json=body).json()["watermark"] == 90
    assert http.get(path).json()["tokens_ignored"] == 1


def test_future_event_times_are_counted_and_move_nothing(http: httpx.Client, make_job: Make) -> None:
    """A substream that sends microseconds instead of milliseconds does not advance the watermark."""
    path = make_job()
    result = report(http, path, good=100, broken=1_700_000_000_000_000)
    assert result["watermark"] == 90
    assert http.get(path).json()["future_rows"] == 1
    latest = begin(http, path, "q", 0).json()["latest_event_time"]
    assert abs(latest - result["now_ms"] - 24 * 3_600_000) < 3_600_000


def test_a_completed_job_can_be_reopened(http: httpx.Client, make_job: Make) -> None:
    """An operator can reopen a job that was completed by mistake."""
    path = make_job()
    report(http, path, a=100)
    assert post(http, f"{path}:complete")["watermark"] == 101
    refused = http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [200]})
    assert refused.json()["code"] == "job_complete"
    assert post(http, f"{path}:reopen", reason="wrong job")["applied"]
    assert report(http, path, a=200)["watermark"] == 190


def test_reported_watermarks_count_under_the_reported_policy(http: httpx.Client, make_job: Make) -> None:
    """A source such as Kinesis or another engine can report its own watermarks."""
    path = make_job(policy={"type": "reported"})
    result = post(http, f"{path}:report", substreams=["a", "b"], watermarks=[50, 70])
    assert result["watermark"] == 50
    assert post(http, f"{path}:report", substreams=["a"], watermarks=[50])["applied"] is False


def test_watermarks_alone_are_refused_under_any_other_policy(http: httpx.Client, make_job: Make) -> None:
    """Other policies ignore reported watermarks, so such a substream would hold the job forever."""
    refused = post(http, f"{make_job()}:report", 409, substreams=["a"], watermarks=[50])
    assert (refused["code"], refused["field"], refused["substreams"]) == (
        "event_time_missing",
        "max_event_times",
        ["a"],
    )


def test_an_override_is_shown_where_it_applies(http: httpx.Client, make_job: Make) -> None:
    """The table of substreams shows the override that sets a substream's policy."""
    path = make_job(overrides=[{"substreams": "slow-*", "policy": {"type": "limiting_lag", "lag_ms": 60}}])
    assert report(http, path, **{"slow-1": 100, "quick": 100})["watermark"] == 40
    rows = {row["substream"]: row for row in http.get(f"{path}/substreams").json()["substreams"]}
    assert {name: (row["policy"], row["watermark"]) for name, row in rows.items()} == {
        "slow-1": ("slow-*", 40),
        "quick": (None, 90),
    }


def test_staged_future_rows_are_counted_at_the_commit(http: httpx.Client, make_job: Make) -> None:
    """Executors exclude future rows from the max event times and report their number."""
    path = make_job()
    begin(http, path, "q", 0)
    stage(http, path, "q", 0, substreams=["a", "b"], max_event_times=[5, None], counts=[3, 0], future_counts=[0, 2])
    assert http.get(path).json()["future_rows"] == 0
    post(http, f"{path}/queries/q/batches/0:commit", **RUN)
    status, rows = http.get(path).json(), http.get(f"{path}/substreams").json()["substreams"]
    assert (status["future_rows"], [row["substream"] for row in rows]) == (2, ["a"])


def test_a_query_that_ended_is_retired_with_its_substreams(http: httpx.Client, make_job: Make) -> None:
    """A query that has ended does not hold the job after its retirement."""
    path = make_job()
    begin(http, path, "old", 0)
    report(http, path, a=100)
    assert http.get(path).json()["watermark"] is None
    result = post(http, f"{path}/queries/old:retire", reason="replaced")
    assert (result["applied"], result["watermark"]) == (True, 90)
    assert post(http, f"{path}/queries/old:retire")["applied"] is False
    assert begin(http, path, "old", 1).json()["code"] == "query_retired"
    assert http.get(f"{path}/queries").json()["queries"][0]["retired"] is True
    assert post(http, f"{path}/queries/never:retire", 404)["code"] == "query_not_found"
    assert post(http, f"{path}/queries/old:hand_over", 422)["field"] == "successor"


def test_a_renamed_query_hands_its_substreams_over(http: httpx.Client, make_job: Make) -> None:
    """The successor takes over the substreams and their max event times."""
    path = make_job()
    begin(http, path, "old", 0)
    stage(http, path, "old", 0, substreams=["a", "b"], max_event_times=[100, 50])
    post(http, f"{path}/queries/old/batches/0:commit", **RUN)
    post(http, f"{path}/queries/old:hand_over", successor="new", reason="renamed")
    rows = http.get(f"{path}/substreams").json()["substreams"]
    assert {(row["query"], row["substream"], row["max_event_time"]) for row in rows} == {
        ("new", "a", 100),
        ("new", "b", 50),
    }


def test_a_query_with_a_lost_checkpoint_releases_its_batch(http: httpx.Client, make_job: Make) -> None:
    """After its checkpoint is lost, the query can release its open batch and start with a new checkpoint."""
    path = make_job()
    begin(http, path, "q", 0)
    other = {"query_id": "another", "run_id": "run-2"}
    refused = http.put(f"{path}/queries/q/batches/0", json=other)
    assert refused.json()["code"] == "checkpoint_conflict"
    assert ":hand_over" in refused.json()["detail"]
    assert post(http, f"{path}/queries/q:hand_over", successor="q", reason="checkpoint lost")["applied"]
    assert http.put(f"{path}/queries/q/batches/0", json=other).status_code == 200


def test_a_lost_job_is_declared_with_its_max_event_times(http: httpx.Client, make_job: Make) -> None:
    """After Redis has lost its data, clients declare their substreams with the last known max event times."""
    path = make_job()
    result = post(http, f"{path}:declare", substreams=["a", "b"], max_event_times=[100, None], query="q")
    assert (result["applied"], result["watermark"]) == (True, None)
    rows = {row["substream"]: row["max_event_time"] for row in http.get(f"{path}/substreams").json()["substreams"]}
    assert rows == {"a": 100, "b": None}
    assert post(http, f"{path}:declare", substreams=["a"], max_event_times=[500], query="q")["applied"] is False
    assert post(http, f"{path}:declare", 422, substreams=["a"], max_event_times=[1, 2])["field"] == "max_event_times"


def test_watermarks_of_another_engine_are_restored(http: httpx.Client, make_job: Make) -> None:
    """A job that moves from another engine starts with that engine's watermarks."""
    path = make_job()
    post(http, f"{path}:declare", substreams=["a", "b"])
    assert post(http, f"{path}:restore", substreams=["a"], watermarks=[70])["watermark"] is None
    assert post(http, f"{path}:restore", substreams=["b"], watermarks=[60])["watermark"] == 60
    assert post(http, f"{path}:restore", substreams=["b"], watermarks=[10])["applied"] is False
    assert post(http, f"{path}:restore", 404, substreams=["c"], watermarks=[10])["code"] == "substream_not_found"


def calls_with_times(http: httpx.Client, path: str, at: int, **force: bool) -> dict[str, httpx.Response]:
    """Return the answers of all calls that take a time from a person, by the name of the time."""
    reason = {"reason": "a mistake"}
    return {
        "at_least": http.get(f"{path}/watermark", params={"at_least": at, "timeout_s": 0, **force}),
        "watermarks": http.post(f"{path}:restore", json={"substreams": ["a"], "watermarks": [at], **reason, **force}),
        "at_most": http.post(f"{path}/holds", json={"at_most": at, "hold": "h", "duration_ms": 1, **reason, **force}),
        "up_to": http.post(f"{path}:complete", json={"up_to": at, **reason, **force}),
    }


@pytest.mark.parametrize(
    ("at", "hint"),
    [
        (1_357_552_800, "1357552800 looks like Unix seconds; write 1357552800000, in milliseconds."),
        (1_357_552_800_000_000, "1357552800000000 looks like Unix microseconds; write 1357552800000, in milliseconds."),
        (20_130_107, "20130107 looks like a date; write 2013-01-07, or Unix milliseconds."),
    ],
)
def test_a_time_in_another_unit_is_refused_until_the_caller_insists(
    http: httpx.Client, make_job: Make, at: int, hint: str
) -> None:
    """Microseconds would move the watermark by thousands of years, which only a reset undoes. A wait for seconds would
    end at once.
    """
    path = make_job()
    report(http, path, a=1_357_552_000_000)
    for field, answer in calls_with_times(http, path, at).items():
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["field"]) == (422, "invalid_request", field)
        assert problem["detail"] == f"{field}: {hint} To use {field} as it is, insist with force."
    assert http.get(path).json()["watermark"] == 1_357_552_000_000 - 10
    assert not http.get(path).json()["holds"]
    for field, answer in calls_with_times(http, path, at, force=True).items():
        assert answer.status_code in (200, 409), (field, answer.text)  # the hold can still be in force


def test_old_and_small_times_are_accepted(http: httpx.Client, make_job: Make) -> None:
    """Old data is replayed, and tests use small numbers."""
    path = make_job()
    for time in (-1, 0, 5, 100_000, 100_000_000_000, 1_357_552_800_000, 20_131_307):
        assert http.get(f"{path}/watermark", params={"at_least": time, "timeout_s": 0}).status_code == 200


def test_a_job_in_another_unit_accepts_its_times(http: httpx.Client, make_job: Make) -> None:
    """Without max_future_skew_ms, event times can be seconds."""
    path = make_job(max_future_skew_ms=None)
    report(http, path, a=1_357_552_000)
    for field, answer in calls_with_times(http, path, 1_357_552_800).items():
        assert answer.status_code in (200, 409), (field, answer.text)


def test_a_doubtful_watermark_is_found_in_a_large_request(http: httpx.Client, make_job: Make) -> None:
    """Another process reads large bodies, and passes on no columns."""
    path = make_job()
    names = [f"{number:0>90}" for number in range(500)]
    times = [1_357_552_800_000] * len(names)
    mistaken = [*times[:-1], 1_357_552_800]
    assert post(http, f"{path}:restore", 422, substreams=names, watermarks=mistaken)["field"] == "watermarks"
    assert post(http, f"{path}:restore", 404, substreams=names, watermarks=times)["code"] == "substream_not_found"


def test_an_expected_query_holds_until_it_reports(http: httpx.Client, make_job: Make) -> None:
    """The watermark stays unset until every expected query has reported."""
    path = make_job(expected_queries=["q", "late"])
    result = report(http, path, a=100)
    assert (result["watermark"], result["held_by"]["reason"]) == (None, "missing_query")
    assert http.get(path).json()["missing_queries"] == ["late", "q"]
    for query in ("q", "late"):
        begin(http, path, query, 0)
        stage(http, path, query, 0, substreams=["s"], max_event_times=[200])
        post(http, f"{path}/queries/{query}/batches/0:commit", **RUN)
    assert http.get(path).json()["watermark"] == 90
    assert begin(http, path, "surprise", 0).json()["joined"] is True


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "limiting_lag_and_delay", "lag_ms": 10, "max_delay_ms": 50},
        {"type": "limiting_lag_and_lull", "lag_ms": 10, "max_lull_ms": 50},
        {"type": "limiting_timestamp_and_wall_clock_lag", "timestamp_lag_ms": 10, "wall_clock_lag_ms": 10**12},
    ],
    ids=lambda policy: str(policy["type"]),
)
def test_the_clock_moves_a_watermark_without_reports(
    http: httpx.Client, make_job: Make, policy: dict[str, Any]
) -> None:
    """A long poll is answered when only the clock moves the watermark."""
    path = make_job(policy=policy)
    before = report(http, path, a=10_000)["watermark"]
    waited = http.get(f"{path}/watermark", params={"at_least": (before or 0) + 1, "timeout_s": 60}).json()
    assert waited["reached"]


def test_the_configuration_can_change_while_the_job_runs(http: httpx.Client, make_job: Make) -> None:
    """A shorter lag advances the watermark immediately. A longer lag does not move it back."""
    path = make_job()
    report(http, path, a=100)
    for lag, expected in ((0, 100), (60, 100)):
        config = {"policy": {"type": "limiting_lag", "lag_ms": lag}}
        assert http.put(path, json=config, headers={"If-Match": "*"}).json()["watermark"] == expected
    lull = {"policy": {"type": "limiting_lag_and_lull", "lag_ms": 60, "max_lull_ms": 0}}
    assert http.put(path, json=lull, headers={"If-Match": "*"}).status_code == 200
    waited = http.get(f"{path}/watermark", params={"at_least": 101, "timeout_s": 60}).json()
    assert waited["reached"]


def test_a_job_can_complete_beyond_its_max_event_time(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """`up_to` raises the last watermark, for example to expire the state of joins. It never lowers the watermark."""
    for job, up_to, expected in (("1", None, 101), ("2", 5000, 5000), ("3", 50, 101)):
        path = make_job() + job
        http.put(path, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [100]}).raise_for_status()
        told = http.post(f"{path}:complete", json={"reason": "done", "up_to": up_to}).raise_for_status().json()
        assert told["watermark"] == expected
        assert http.get(f"{path}/history").json()["records"][1].get("up_to") == up_to
        further = http.post(f"{path}:complete", json={"up_to": 7000}).raise_for_status().json()
        again = http.post(f"{path}:complete", json={"up_to": 6000}).raise_for_status().json()
        assert (further["watermark"], further["applied"]) == (7000, True), (
            "a further `:complete` may raise the watermark"
        )
        assert (again["watermark"], again["applied"]) == (7000, False)
        http.delete(path).raise_for_status()
        http.delete(path.removesuffix(job)).raise_for_status()
