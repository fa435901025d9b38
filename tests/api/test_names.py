"""Any text can be the name of a substream, and every call returns the name unchanged."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import CONFIG, RUN, problem
from tests.support.events import watching
from tidegate_spark.testing import CoordinatorProcess

Make = Callable[..., str]

NAMES = {
    "quotes": 'it\'s "quoted" `twice`',
    "slashes": "/a//b\\c/",
    "colons": "a:b::report:",
    "markup": "<script>alert('1')</script>&amp;",
    "emoji": "🌊👩🏽‍🚀",
    "right to left": "שלום\u200f עולם\u202e.txt",
    "combining": "e\u0301 is not \u00e9",
    "blanks": "  two  blanks  ",
    "percent": "100%25 %2F %s {0} $1",
    "star": "a*b",
    "number": "-0",
    "null": "null",
    "lua": "]] .. redis.call('FLUSHALL') .. [[",
    "200 bytes": "é" * 99 + "xy",
    "200 emoji bytes": "🌊" * 50,
}


@pytest.fixture(params=list(NAMES.values()), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    assert len(found.encode()) <= 200
    return found


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def table(http: httpx.Client, path: str, **parameters: Any) -> list[tuple[str, str]]:
    rows = http.get(f"{path}/substreams", params=parameters).json()["substreams"]
    return [(row["query"], row["substream"]) for row in rows]


def test_a_name_survives_every_call(
    http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make, name: str
) -> None:
    path = make_job(overrides=[{"substreams": name[:40].rpartition("*")[0] + "*", "policy": CONFIG["policy"]}])
    assert post(http, f"{path}:declare", substreams=[name])["held_by"]["substream"] == name
    assert post(http, f"{path}:restore", substreams=[name], watermarks=[5])["watermark"] == 5
    with watching(tidegate.url + path) as events:
        [state] = events.take(1)
        assert state.data["held_by"]["substream"] == name
        result = post(
            http, f"{path}:report", substreams=[name], max_event_times=[100], min_event_times=[90], counts=[1]
        )
        assert (result["watermark"], result["held_by"]["substream"]) == (90, name)
        [emission] = events.take(1)
        assert emission.data["substream"] == name

    held = http.get(f"{path}:explain").json()["holders"][0]
    assert (held["substream"], held["reason"]) == (name, "slow")
    assert table(http, path) == table(http, path, name=name) == [("", name)]
    row = http.get(f"{path}/substreams").json()["substreams"][0]
    assert (row["policy"] is not None, row["max_event_time"]) == (True, 100)

    post(http, f"{path}/substreams:idle", substreams=[name], reason=name)
    [record] = http.get(f"{path}/history", params={"kind": "action", "limit": 1}).json()["records"]
    assert (record["substreams"], record["reason"]) == ([f"/{name}"], name)
    post(http, f"{path}/substreams:done", substreams=[name])
    assert table(http, path, state="done") == [("", name)]
    post(http, f"{path}/substreams:evict", substreams=[name])
    assert table(http, path) == []
    refused = http.post(f"{path}/substreams:done", json={"substreams": [name]})
    assert problem(refused, 404, "substream_not_found")["substreams"] == [name]

    batch = f"{path}/queries/q/batches/0"
    http.put(batch, json=RUN).raise_for_status()
    at = {"query": "q", **RUN, "batch_id": 0, "partition": 0}
    post(http, f"{path}:report", substreams=[name], max_event_times=[120], counts=[3], batch=at)
    rows = {"rule": name[:100], "substreams": [name], "on_time": [1], "late": [1], "null_event_time": [1]}
    post(http, f"{batch}:commit", **RUN, rows=rows, reported=1)
    [row] = http.get(f"{path}/substreams", params={"query": "q"}).json()["substreams"]
    assert (row["substream"], row["reported"], row["rows"]["late"]) == (name, 3, 1)
    post(http, f"{path}/queries/q:hand_over", successor="r")
    assert table(http, path) == [("r", name)]
    post(http, f"{path}/holds", at_most=1, reason=name)
    assert http.get(path).json()["holds"][0]["reason"] == name
    http.delete(f"{path}/holds/{http.get(path).json()['holds'][0]['hold']}", params={"reason": name}).raise_for_status()
    [record] = http.get(f"{path}/history", params={"kind": "action", "limit": 1}).json()["records"]
    assert (record["action"], record["reason"]) == ("release", name)


def test_pages_can_end_at_any_name(http: httpx.Client, make_job: Make) -> None:
    """The cursor of the next page contains the name, so every name must survive its encoding."""
    path = make_job()
    post(http, f"{path}:report", substreams=list(NAMES.values()), max_event_times=list(range(100, 100 + len(NAMES))))
    for sort in ("name", "max_event_time", "since"):
        for descending in (False, True):
            whole = table(http, path, sort=sort, descending=descending)
            assert sorted(whole) == sorted(("", name) for name in NAMES.values())
            paged: list[tuple[str, str]] = []
            after: Any = ""
            while after is not None:
                parameters = {"sort": sort, "descending": descending, "after": after, "limit": 1}
                page = http.get(f"{path}/substreams", params=parameters).json()
                paged += [(row["query"], row["substream"]) for row in page["substreams"]]
                after = page["next"]
            assert paged == whole


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1b", "\x7f", "\x9b", "\u2028"], ids=ascii)
def test_control_characters_in_texts_are_refused(http: httpx.Client, make_job: Make, character: str) -> None:
    """Texts with control characters are refused, because a terminal would interpret them."""
    path, text = make_job(), f"a{character}b"
    action = {"substreams": ["a"], "reason": text}
    batch = f"{path}/queries/q/batches/0"
    http.put(batch, json=RUN).raise_for_status()
    rows = {"rule": text, "substreams": [], "on_time": [], "late": [], "null_event_time": []}
    overrides = [{"substreams": text, "policy": CONFIG["policy"]}]
    for answer in (
        http.post(f"{path}/substreams:idle", json=action),
        http.post(f"{path}:complete", json={"reason": text}),
        http.post(f"{path}/queries/q:retire", json={"reason": text}),
        http.post(f"{path}/holds", json={"at_most": 1, "reason": text}),
        http.delete(f"{path}/holds/h", params={"reason": text}),
        http.post(f"{batch}:commit", json=RUN | {"rows": rows}),
        http.put(path, json=CONFIG | {"overrides": overrides}, headers={"If-Match": "*"}),
    ):
        assert problem(answer, 422, "invalid_request")["field"].rpartition(".")[2] in ("reason", "rule", "substreams")
    assert http.get(f"{path}/history").json()["records"][0]["kind"] != "action"
