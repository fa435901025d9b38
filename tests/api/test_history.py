"""The history of a job, over HTTP."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import RUN

WATERMARKS = ("watermark", "coalesced_watermark", "written_watermark")


def report(http: httpx.Client, path: str, event_time: int) -> dict[str, Any]:
    answer = http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [event_time]})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def kinds(page: dict[str, Any]) -> list[str]:
    return [record["kind"] for record in page["records"]]


def test_every_emission_names_its_holder(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    for event_time in (100, 200):
        report(http, path, event_time)
    http.post(f"{path}/holds", json={"hold": "h", "at_most": 190, "reason": "not yet"})
    http.post(f"{path}:declare", json={"query": "q", "substreams": ["b", "c"]})
    page = http.get(f"{path}/history").json()
    assert page["next"] is None and page["watermark"] == 190
    summaries = [
        {name: value for name, value in record.items() if name not in ("id", "at_ms")} for record in page["records"]
    ]
    assert summaries == [
        {"kind": "action", "action": "declare", "query": "q", "count": 2, "substreams": ["q/b", "q/c"]},
        {"kind": "action", "action": "hold", "hold": "h", "at_most": 190, "reason": "not yet"},
        {"kind": "emission", **dict.fromkeys(WATERMARKS, 190), "held_by": "slow", "substream": "a"},
        {"kind": "emission", **dict.fromkeys(WATERMARKS, 90), "held_by": "slow", "substream": "a"},
        {"kind": "created"},
    ]
    assert page["kept_from_ms"] == page["records"][-1]["at_ms"]


def test_only_changes_of_the_watermark_are_emissions(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """A record of kind `emission` exists only for a change of the emitted watermark."""
    path = make_job()
    batch = f"{path}/queries/q/batches"
    http.put(f"{batch}/0", json=RUN).raise_for_status()
    for event_time in (100, 200):
        report(http, path, event_time)
    http.post(f"{batch}/0:commit", json=RUN).raise_for_status()
    http.put(f"{batch}/1", json=RUN).raise_for_status()
    report(http, path, 300)
    records = http.get(f"{path}/history", params={"kind": ["emission", "coalesced_watermark"]}).json()["records"]
    assert [(record["kind"], record["watermark"], record["coalesced_watermark"]) for record in reversed(records)] == [
        ("coalesced_watermark", None, 90),
        ("coalesced_watermark", None, 190),
        ("emission", 190, 190),
        ("coalesced_watermark", 190, 290),
    ]
    assert [record.get("held_by") for record in reversed(records)] == ["open_batch", "open_batch", "slow", "open_batch"]
    status = http.get(path).json()
    assert (status["emissions"], status["watermark"]) == (1, 190)
    now = http.get(f"{path}/history", params={"as_of": status["now_ms"]}).json()["as_of"]
    assert (now["kind"], now["watermark"], now["held_by"]) == ("coalesced_watermark", 190, "open_batch")


def test_as_of_returns_the_state_at_a_time(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    moments = []
    for event_time in (100, 200, 300):
        time.sleep(0.01)
        moments.append(report(http, path, event_time)["now_ms"])
    for moment, watermark in zip(moments, (90, 190, 290), strict=True):
        page = http.get(f"{path}/history", params={"as_of": moment}).json()
        assert page["as_of"]["watermark"] == watermark
        assert page["records"][0] == page["as_of"]
        assert all(record["at_ms"] <= moment for record in page["records"])
    assert http.get(f"{path}/history", params={"as_of": moments[0] - 1}).json()["as_of"] is None
    page = http.get(f"{path}/history", params={"since": moments[1], "as_of": moments[1]}).json()
    assert [record["watermark"] for record in page["records"]] == [190]
    reset = http.post(f"{path}:reset", json={}).json()["now_ms"]
    assert http.get(f"{path}/history", params={"as_of": reset}).json()["as_of"] is None
    assert http.get(f"{path}/history", params={"as_of": reset - 1}).json()["as_of"]["watermark"] == 290


@pytest.mark.parametrize("chosen", [(), ("emission",), ("action", "created")])
def test_pages_return_every_record_once(
    http: httpx.Client, make_job: Callable[..., str], chosen: tuple[str, ...]
) -> None:
    """Pages return each record once and in order, even if records are added between two pages."""
    path = make_job()
    for number in range(8):
        report(http, path, 100 + number)
        http.post(f"{path}:declare", json={"query": "q", "substreams": [f"b{number}"]})
    query: dict[str, Any] = {"kind": chosen} if chosen else {}
    whole = http.get(f"{path}/history", params=query).json()["records"]
    assert {record["kind"] for record in whole} == set(chosen or ("emission", "action", "created"))
    paged: list[Any] = []
    before: dict[str, Any] = {}
    for event_time in itertools.count(1000):
        page = http.get(f"{path}/history", params={**query, **before, "limit": 3}).json()
        paged += page["records"]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
        report(http, path, event_time)
    assert paged == whole


def test_a_long_history_is_searched_completely(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """A search continues beyond the number of records that one read of the store returns."""
    path = make_job()
    for number in range(1100):
        report(http, path, 100 + number)
    page = http.get(f"{path}/history", params={"kind": "created"}).json()
    assert (kinds(page), page["next"]) == (["created"], None)
    assert len(http.get(f"{path}/history", params={"limit": 1000}).json()["records"]) == 1000


@pytest.mark.parametrize(
    ("query", "field"), [("before=x", "before"), ("kind=nonsense", "kind"), ("limit=0", "limit"), ("as_at=5", "as_at")]
)
def test_invalid_parameters_are_refused(
    http: httpx.Client, make_job: Callable[..., str], query: str, field: str
) -> None:
    answer = http.get(f"{make_job()}/history?{query}")
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, "invalid_request", field)


def test_a_misspelt_parameter_is_refused_everywhere(http: httpx.Client, make_job: Callable[..., str]) -> None:
    """A long poll with a misspelt `at_least` is refused. Without a value to wait for, it would end immediately."""
    path = make_job()
    answer = http.get(f"{path}/watermark?atleast=5")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "atleast: unknown parameter; this call accepts: at_least, timeout_s, read, force."
    assert http.delete(f"{path}?reason=old").json()["detail"].endswith("this call accepts: none.")
    assert http.get(path).status_code == 200


def test_a_batch_can_be_read(http: httpx.Client, make_job: Callable[..., str]) -> None:
    path = make_job()
    batches = f"{path}/queries/q/batches"
    for number in range(2):
        begun = http.put(f"{batches}/{number}", json=RUN).json()
        at = {"query": "q", **RUN, "batch_id": number, "partition": 0}
        http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [100 * (number + 1)], "batch": at})
        found = http.get(f"{batches}/{number}").json()
        assert (found["pinned_watermark"], found["open"], found["released"]) == (begun["pinned_watermark"], True, False)
        http.post(f"{batches}/{number}:commit", json=RUN)
    assert [http.get(f"{batches}/{number}").json()["pinned_watermark"] for number in range(2)] == [None, 90]
    first, second = (http.get(f"{batches}/{number}").json() for number in range(2))
    assert (first["open"], first["begun_ms"], second["open"]) == (False, None, False)
    assert second["begun_ms"] <= second["now_ms"]
    assert http.get(f"{batches}/2").json()["code"] == "batch_not_found"
    assert http.get(f"{path}/queries/other/batches/0").json()["code"] == "query_not_found"
