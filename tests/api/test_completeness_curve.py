"""The completeness curve of jobs and substreams, over HTTP."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import RUN, problem, read, report_delays

Make = Callable[..., str]
AIM = {"type": "target_completeness", "target": 0.9, "cold_start_lag_ms": 500, "min_rows": 10}


def completeness(http: httpx.Client, path: str, **parameters: Any) -> dict[str, Any]:
    return read(http, f"{path}/completeness", **parameters)


def test_the_curve_of_a_job(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    report_delays(http, path, {"a": [], "b": []})
    empty = completeness(http, path)
    assert (empty["rows"], empty["points"], empty["quantiles"], empty["achieved"]) == (0, [], [], None)
    report_delays(http, path, {"a": [(0, 90), (20, 9), (300, 1)], "b": [(0, 100)]})
    report_delays(http, path, {"a": [], "b": []}, max_event_time=1100)
    found = completeness(http, path, target=0.99)
    assert found["rows"] == 200
    assert found["lag_ms"] == 10
    assert found["wait_ms"] == 50
    assert (found["target"], found["recommended_lag_ms"]) == (0.99, pytest.approx(20, rel=0.02))
    assert found["points"][0] == {"lag_ms": 0, "completeness": 0.95, "latency_ms": 50}
    assert found["points"][-1]["completeness"] == 1
    at = completeness(http, path, lag_ms=[0, 30, 1000])["points"]
    assert [(point["lag_ms"], point["completeness"]) for point in at] == [(0, 0.95), (30, 0.995), (1000, 1.0)]
    assert {row["share"]: row["delay_ms"] for row in found["quantiles"]}[0.99] == pytest.approx(20, rel=0.02)
    by_window = completeness(http, path, lag_ms=[10], window_ms=100)["points"][0]
    assert by_window["completeness"] == pytest.approx(1 - (9 * 0.1 + 1) / 200, abs=1e-4)


def test_the_curve_of_a_substream(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    report_delays(http, path, {"a": [], "b": []})
    report_delays(http, path, {"a": [(20, 10)], "b": [(0, 10)]})
    assert completeness(http, path, substream="a", lag_ms=[10])["points"][0]["completeness"] == 0
    assert completeness(http, path, substream="b", lag_ms=[10])["points"][0]["completeness"] == 1
    problem(http.get(f"{path}/completeness", params={"substream": "c"}), 404, "substream_not_found")
    problem(http.get(f"{path}/completeness", params={"substream": "a", "query": "q"}), 404, "substream_not_found")


def test_one_substream_has_the_curve_of_its_job(http: httpx.Client, make_job: Make) -> None:
    """The two curves stay equal after a change to a longer lag, which does not move the watermark back."""
    path = make_job(policy={"type": "limiting_lag", "lag_ms": 0})
    report_delays(http, path, {"a": []})
    report_delays(http, path, {"a": [(10, 50)]})
    status = http.get(path)
    config = {"policy": {"type": "limiting_lag", "lag_ms": 3_600_000}}
    assert http.put(path, json=config, headers={"If-Match": status.headers["ETag"]}).status_code == 200
    for _ in range(5):
        report_delays(http, path, {"a": [(10, 50)]})
    job, substream = completeness(http, path), completeness(http, path, substream="a")
    assert job["quantiles"] == substream["quantiles"]
    assert job["points"] == substream["points"]


def test_a_learnt_lag_is_shown(http: httpx.Client, make_job: Make) -> None:
    path = make_job(policy=AIM)
    report_delays(http, path, {"a": []})
    assert completeness(http, path)["lag_ms"] == 500
    report_delays(http, path, {"a": [(0, 9), (100, 1), (40, 1)]})
    found = completeness(http, path)
    assert found["target"] == 0.9
    assert found["lag_ms"] == pytest.approx(100, rel=0.02)
    rows = http.get(f"{path}/substreams").json()["substreams"]
    assert rows[0]["lag"] == found["lag_ms"]
    assert http.get(f"{path}/watermark").json()["watermark"] == 1000 - found["lag_ms"]
    # Too many rows have a delay above the learnt lag, so the history records that the policy learns again.
    report_delays(http, path, {"a": [(800, 60)]})
    kinds = [record["kind"] for record in http.get(f"{path}/history").json()["records"]]
    assert "relearning" in kinds
    assert completeness(http, path)["lag_ms"] == 500  # the cold-start lag applies until enough rows are known


def test_the_achieved_completeness_follows_from_the_late_rows(http: httpx.Client, make_job: Make) -> None:
    path = make_job(policy=AIM)
    assert http.put(f"{path}/queries/q/batches/0", json=RUN).status_code == 200
    body = {
        "substreams": ["a"],
        "max_event_times": [1000],
        "counts": [10],
        "batch": {"query": "q", **RUN, "batch_id": 0, "partition": 0},
    }
    assert http.post(f"{path}:report", json=body).status_code == 200
    rows = {"substreams": ["a"], "on_time": [97], "late": [3], "null_event_time": [5]}
    assert http.post(f"{path}/queries/q/batches/0:commit", json=RUN | {"rows": rows}).status_code == 200
    assert completeness(http, path)["achieved"] == 0.97
    assert completeness(http, path, substream="a", query="q")["achieved"] == 0.97


def test_invalid_parameters_are_refused(http: httpx.Client, make_job: Make) -> None:
    path = make_job(throttle={"type": "frame", "size_ms": 100})
    problem(http.get(f"{path}/completeness", params={"window_ms": 100}), 409, "frame_in_force")
    for wrong in (
        {"target": 1},
        {"target": "all"},
        {"window_ms": -1},
        {"query": "a/b"},
        {"lag_ms": "x"},
        {"lag_ms": -5},
        {"lag_ms": 10**400},
        {"substream": ""},
        {"lag_ms": list(range(201))},
    ):
        problem(http.get(f"{path}/completeness", params=wrong), 422, "invalid_request")
    for delays in ([[[-1, 1]]], [[[1839, 1]]], [[[1, -1]]], [[[1]]], [[1, 2]], [], "x"):
        body = {"substreams": ["a"], "max_event_times": [1], "delays": delays}
        problem(http.post(f"{path}:report", json=body), 422, "invalid_request")
    for policy in ({"target": 1.5}, {"target": "0.9"}, {"floor_ms": 600}, {"ceiling_ms": 10}, {"min_rows": 0}):
        answer = http.put(f"{path}-other", json={"policy": AIM | policy}, headers={"If-None-Match": "*"})
        assert answer.status_code == 422, answer.text
