"""The table of substreams: filters, order, and the time of each state."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import RUN, problem

Make = Callable[..., str]
TOPS = {"bos": 300, "hnl": 100, "jfk": 200, "lga": 200}


def table(http: httpx.Client, path: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = http.get(f"{path}/substreams", params=parameters)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["substreams"]
    return rows


def names(http: httpx.Client, path: str, **parameters: Any) -> list[str]:
    return [row["substream"] for row in table(http, path, **parameters)]


@pytest.fixture
def path(http: httpx.Client, make_job: Make) -> str:
    """Create a job with four reported substreams (one is idle), one declared substream, and one of a query."""
    path = make_job()
    batch = f"{path}/queries/q/batches/0"
    for method, call, body in (
        ("PUT", batch, RUN),
        ("POST", f"{path}:report", {"substreams": list(TOPS), "max_event_times": list(TOPS.values())}),
        ("POST", f"{path}:declare", {"substreams": ["new"]}),
        ("POST", f"{path}/substreams:idle", {"substreams": ["jfk"]}),
        (
            "POST",
            f"{path}:report",
            {
                "substreams": ["bos"],
                "max_event_times": [150],
                "counts": [5],
                "batch": {"query": "q", **RUN, "batch_id": 0, "partition": 0},
            },
        ),
        (
            "POST",
            f"{batch}:commit",
            RUN
            | {
                "rows": {
                    "substreams": ["bos"],
                    "on_time": [1],
                    "late": [4],
                    "null_event_time": [0],
                }
            },
        ),
    ):
        assert http.request(method, call, json=body).status_code == 200
    return path


def test_filters(http: httpx.Client, path: str) -> None:
    """Substreams can be filtered by name, query and state, and by combinations of these."""
    assert names(http, path) == ["bos", "hnl", "jfk", "lga", "new", "bos"]
    assert names(http, path, name="bos") == ["bos", "bos"]
    assert names(http, path, name="*l*") == ["hnl", "lga"]
    assert names(http, path, query="q") == ["bos"]
    assert names(http, path, query="") == ["bos", "hnl", "jfk", "lga", "new"]
    assert names(http, path, state="idle") == ["jfk"]
    assert names(http, path, state=["idle", "done"], name="b*") == []
    assert names(http, path, name="nowhere") == names(http, path, query="nobody") == []
    for wrong in ({"state": "asleep"}, {"sort": "colour"}, {"query": "a/b"}, {"after": "hnl"}, {"limit": 0}):
        problem(http.get(f"{path}/substreams", params=wrong), 422, "invalid_request")


def test_sort_orders(http: httpx.Client, path: str) -> None:
    """Rows without a value come first. Rows with equal values are sorted by name."""
    assert names(http, path, sort="max_event_time", query="") == ["new", "hnl", "jfk", "lga", "bos"]
    assert names(http, path, sort="watermark", descending=True, query="") == ["bos", "lga", "jfk", "hnl", "new"]
    assert names(http, path, sort="late", descending=True, limit=1) == ["bos"]
    assert table(http, path, sort="late", descending=True, limit=1)[0]["query"] == "q"
    assert names(http, path, sort="last_event", query="")[-1] == "new"


def test_each_row_has_the_time_of_its_state(http: httpx.Client, path: str) -> None:
    """`since_ms` equals the time at which the history records the state, and is null before the first change."""
    before = {row["substream"]: row["since_ms"] for row in table(http, path, query="")}
    history = http.get(f"{path}/history", params={"kind": "action"}).json()["records"]
    assert before["jfk"] == next(record["at_ms"] for record in history if record["action"] == "idle")
    assert (before["new"], before["hnl"]) == (None, None)
    http.post(f"{path}:report", json={"substreams": ["jfk", "hnl"], "max_event_times": [250, 250]}).raise_for_status()
    http.post(f"{path}/substreams:done", json={"substreams": ["lga"]}).raise_for_status()
    after = {row["substream"]: row for row in table(http, path, query="")}
    wake = http.get(f"{path}/history", params={"kind": "active"}).json()["records"][0]
    assert (after["jfk"]["state"], after["jfk"]["since_ms"]) == ("active", wake["at_ms"])
    assert after["hnl"]["since_ms"] == before["hnl"], "an active substream that reports keeps its `since_ms`"
    assert (after["lga"]["state"], after["lga"]["since_ms"] >= wake["at_ms"]) == ("done", True)
    completed = http.post(f"{path}:complete", json={}).json()["now_ms"]
    frozen = {row["substream"]: row for row in table(http, path, query="")}
    assert (frozen["hnl"]["state"], frozen["hnl"]["since_ms"]) == ("done", completed)
    assert frozen["lga"]["since_ms"] == after["lga"]["since_ms"]
    http.post(f"{path}:reopen", json={}).raise_for_status()
    assert {row["substream"]: row["since_ms"] for row in table(http, path, query="")} == {
        name: row["since_ms"] for name, row in after.items()
    }


def test_large_tables_are_read_in_parts(http: httpx.Client, make_job: Make) -> None:
    """The order is correct in a table that takes several reads of the store."""
    path = make_job()
    many = [f"s{number:04d}" for number in range(2500)]
    for first in range(0, len(many), 1000):
        some = many[first : first + 1000]
        http.post(f"{path}:report", json={"substreams": some, "max_event_times": [100] * len(some)}).raise_for_status()
    assert names(http, path, limit=10_000) == many
    assert names(http, path, limit=10_000, sort="max_event_time", descending=True) == many[::-1]
    assert http.get(f"{path}/substreams", params={"limit": 2500}).json()["next"] is None


def test_a_delete_needs_the_current_etag(http: httpx.Client, path: str) -> None:
    """A delete with an outdated ETag is refused."""
    seen = http.get(path).headers["etag"]
    config = http.get(path).json()["config"]
    http.put(path, json=config, headers={"If-Match": seen}).raise_for_status()
    problem(http.delete(path, headers={"If-Match": seen}), 412, "revision_mismatch")
    assert http.delete(path, headers={"If-Match": http.get(path).headers["etag"]}).status_code == 204
    assert http.delete(path).status_code == 204
    problem(http.get(f"{path}/substreams"), 410, "job_deleted")
