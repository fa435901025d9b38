"""Offsets in calls: a commit tells them, and the status, the explanation, the history and the metrics show them."""

from collections.abc import Callable
from typing import Any

import httpx

from tests.support.api import RUN


def commit(http: httpx.Client, path: str, batch: int, offsets: Any) -> httpx.Response:
    http.put(f"{path}/queries/q/batches/{batch}", json=RUN).raise_for_status()
    report = {"substreams": ["t/0"], "max_event_times": [100 + batch], "counts": [1]}
    about = {"query": "q", **RUN, "batch_id": batch, "partition": 0}
    http.post(f"{path}:report", json={**report, "batch": about}).raise_for_status()
    return http.post(f"{path}/queries/q/batches/{batch}:commit", json={**RUN, "offsets": offsets})


def test_offsets_are_shown_everywhere(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    assert http.get(f"{path}/queries/q/offsets").json()["partitions"] == [], "not begun"
    told = {"partitions": ["t/0", "t/1"], "ends": [5, 9], "starts": [0, 0], "latest": [20, 9], "behind_ms": [700, 0]}
    commit(http, path, 0, told).raise_for_status()
    later = {**told, "starts": [5, 12], "ends": [10, 19], "latest": [20, 19], "open_transactions": ["t/0"]}
    commit(http, path, 1, later).raise_for_status()
    behind = {"partition": "t/0", "committed": 10, "latest": 20, "unread": 10, "behind_ms": 700}
    (query,) = http.get(f"{path}/queries").json()["queries"]
    assert query["offsets"] == {
        "at_ms": query["last_contact_ms"],
        "batch_id": 1,
        "partitions": 2,
        "unread": 10,
        "skipped": 3,
        "most_behind": [{**behind, "open_transaction": True}],
    }
    table = http.get(f"{path}/queries/q/offsets").json()
    assert (table["query"], table["batch_id"], table["skipped"]) == ("q", 1, 3)
    assert [(row["partition"], row["committed"], row["unread"]) for row in table["partitions"]] == [
        ("t/0", 10, 10),
        ("t/1", 19, 0),
    ]
    assert http.get(f"{path}:explain").json()["offsets"] == {"q": query["offsets"]}
    (record,) = http.get(f"{path}/history", params={"kind": "offsets_skipped"}).json()["records"]
    assert (record["query"], record["batch_id"], record["count"], record["partitions"]) == ("q", 1, 3, ["t/1"])
    job, metrics = path.rpartition("/")[2], http.get("/metrics").text
    assert f'tidegate_job_unread_offsets{{job_name="{job}",query="q"}} 10.0' in metrics
    assert f'tidegate_job_skipped_offsets_total{{job_name="{job}",query="q"}} 3.0' in metrics


def test_invalid_offsets_are_refused(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    valid = {"partitions": ["t/0"], "ends": [5]}
    for change, field in (
        ({"ends": [5, 6]}, "offsets.ends"),
        ({"ends": [-1]}, "offsets.ends.0"),
        ({"latest": ["5"]}, "offsets.latest.0"),
        ({"partitions": ["t/0", "t/0"], "ends": [5, 5]}, "offsets.partitions"),
        ({"open_transactions": ["u/0"]}, "offsets.open_transactions"),
        ({"batch_id": 1}, "offsets.batch_id"),
        ({"substream_columns": ["offset"]}, "offsets.substream_columns.0"),
        ({"substream_columns": ["topic", "topic"]}, "offsets.substream_columns"),
        ({"substream_columns": ["topic"], "partitions": ["t"]}, "offsets.partitions"),
        ({"partitions": [str(number) for number in range(5001)], "ends": [0] * 5001}, "offsets.partitions"),
    ):
        answer = commit(http, path, 0, {**valid, **change})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    for about, field in (({}, "after_batch"), ({"after_batch": 0}, "offsets.batch_id")):
        body = {**RUN, "observed_ms": 0, "offsets": {**valid, "batch_id": 1}, **about}
        answer = http.post(f"{path}/queries/q:heartbeat", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert http.get(f"{path}/queries/q/offsets").json()["batch_id"] is None
    assert commit(http, path, 0, valid).json()["applied"] is True
    (query,) = http.get(f"{path}/queries").json()["queries"]
    assert (query["offsets"]["unread"], query["offsets"]["most_behind"]) == (None, [])


def test_a_heartbeat_tells_offsets_that_the_commit_has_not_told(
    http: httpx.Client, make_job: Callable[..., str]
) -> None:
    path = make_job()
    commit(http, path, 0, None).raise_for_status()
    body = {**RUN, "observed_ms": 0, "after_batch": 0, "offsets": {"partitions": ["t/0"], "ends": [5]}}
    assert http.post(f"{path}/queries/q:heartbeat", json=body).json()["applied"] is True
    assert http.get(f"{path}/queries/q/offsets").json()["partitions"][0]["committed"] == 5


def test_new_partitions_start_again_and_missing_ones_are_done(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    told = {"partitions": ["t/0", "u/1"], "ends": [5, 7], "substream_columns": ["topic", "partition"]}
    commit(http, path, 0, told).raise_for_status()
    http.put(f"{path}/queries/q/batches/1", json=RUN).raise_for_status()
    changed = {**told, "starts": [5, 7], "ends": [2, 9]}
    http.post(f"{path}/queries/q/batches/1:commit", json={**RUN, "offsets": changed}).raise_for_status()
    (row,) = http.get(f"{path}/substreams").json()["substreams"]
    assert (row["state"], row["watermark"]) == ("active", None)
    (record,) = http.get(f"{path}/history", params={"kind": ["restarted", "ended"]}).json()["records"]
    assert (record["kind"], record["substreams"]) == ("restarted", ["q/t/0"])
    http.post(f"{path}:declare", json={"query": "q", "substreams": ["u/1"]}).raise_for_status()
    commit(http, path, 2, {**told, "partitions": ["u/1"], "ends": [9]}).raise_for_status()
    rows = http.get(f"{path}/substreams").json()["substreams"]
    assert {row["substream"]: row["state"] for row in rows} == {"t/0": "done", "u/1": "active"}


def test_a_reset_forgets_offsets(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    commit(http, path, 0, {"partitions": ["t/0"], "ends": [5]}).raise_for_status()
    http.post(f"{path}:reset", json={"reason": "r"}, headers={"If-Match": "*"}).raise_for_status()
    http.put(f"{path}/queries/q/batches/0", json={**RUN, "run_id": "later"}).raise_for_status()
    (query,) = http.get(f"{path}/queries").json()["queries"]
    assert query["offsets"] is None
