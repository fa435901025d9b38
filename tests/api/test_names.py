"""Names of substreams, which can be any text, and ids, which no client or proxy may change on their way."""

import json
import re
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis as redis_sync

from tests.support.api import CONFIG, RUN, problem, read
from tests.support.driver import Driver
from tests.support.events import watching
from tests.support.local import LocalCoordinator
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag
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
    rows = {"substreams": [name], "on_time": [1], "late": [1], "null_event_time": [1]}
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
    rows = {"substreams": [text], "on_time": [0], "late": [0], "null_event_time": [0]}
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
        assert problem(answer, 422, "invalid_request")["field"].rpartition(".")[2] in ("reason", "substreams")
    assert http.get(f"{path}/history").json()["records"][0]["kind"] != "action"


def raw(url: str, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Send a request with a path that no client has normalized; return the status and the problem."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    headers = {"Content-Type": "application/json", "If-None-Match": "*"} if method == "PUT" else {}
    connection.request(method, path, json.dumps(body or {}), {"Content-Type": "application/json"} | headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text.startswith(b"{") else {}


REPORT = {"substreams": ["a"], "max_event_times": [1]}
CALLS_BY_ID: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GET", "/v1/jobs/{}", {}),
    ("PUT", "/v1/jobs/{}", CONFIG),
    ("DELETE", "/v1/jobs/{}", {}),
    ("POST", "/v1/jobs/{}:report", REPORT),
    ("POST", "/v1/jobs/{}:reset", {}),
    ("GET", "/v1/jobs/{}/watermark", {}),
    ("PUT", "/v1/jobs/{}/queries/q/batches/0", RUN),
    ("GET", "JOB/queries/{}/batches/0", {}),
    ("PUT", "JOB/queries/{}/batches/0", RUN),
    ("POST", "JOB/queries/{}/batches/0:commit", RUN),
    ("POST", "JOB/queries/{}:heartbeat", RUN | {"observed_ms": 1}),
    ("POST", "JOB/queries/{}:hand_over", {"successor": "q"}),
    ("POST", "JOB/queries/{}:retire", {}),
    ("DELETE", "JOB/holds/{}", {}),
)


@pytest.mark.parametrize("segment", [".", "..", "%2e", "%2E%2e", ".%2E"])
def test_a_dot_segment_is_no_id_in_a_path(tidegate: CoordinatorProcess, make_job: Make, segment: str) -> None:
    """Clients remove dot segments: a DELETE of the hold ``..`` would become a DELETE of its job."""
    path = make_job()
    for method, template, body in CALLS_BY_ID:
        target = template.replace("JOB", path).format(segment)
        status, answer = raw(tidegate.url, method, target, body)
        assert (status, answer.get("code")) == (422, "invalid_request"), (method, target, answer)
        assert answer["detail"].endswith("must be 1 to 128 letters, digits and . _ ~ -, but not . or .. alone"), target


@pytest.mark.parametrize("name", [".", ".."])
def test_a_dot_segment_is_no_id_in_a_body(http: httpx.Client, make_job: Make, name: str) -> None:
    path = make_job()
    batch = f"{path}/queries/q/batches/0"
    at = {"query": name, **RUN, "batch_id": 0, "partition": 0}
    report = {"substreams": ["a"], "max_event_times": [1], "batch": at}
    for field, answer in (
        ("hold", http.post(f"{path}/holds", json={"at_most": 1, "reason": "x", "hold": name})),
        ("successor", http.post(f"{path}/queries/q:hand_over", json={"successor": name})),
        ("query", http.post(f"{path}:declare", json={"substreams": ["a"], "query": name})),
        ("query", http.post(f"{path}/substreams:idle", json={"substreams": ["a"], "query": name})),
        ("batch.query", http.post(f"{path}:report", json=report)),
        ("run_id", http.put(batch, json=RUN | {"run_id": name})),
        ("query_id", http.put(batch, json=RUN | {"query_id": name})),
        (
            "expected_queries.0",
            http.put(path, json=CONFIG | {"expected_queries": [name]}, headers={"If-Match": "*"}),
        ),
    ):
        assert problem(answer, 422, "invalid_request")["field"].startswith(field), answer.text
        assert "but not . or .. alone" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["...", ".a", "a.", "..a", "a..", "-", "~", "_", "A", "%7E", "x" * 128])
def test_all_other_names_are_ids(http: httpx.Client, job_name: str, name: str) -> None:
    """No client changes these names, so the job, the query and the hold have the name that the client sent."""
    job, plain = f"/v1/jobs/{name}", name.replace("%7E", "~")
    http.put(job, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    assert http.get(job).json()["job"] == plain
    http.put(f"{job}/queries/{name}/batches/0", json=RUN).raise_for_status()
    assert [row["query"] for row in http.get(f"{job}/queries").json()["queries"]] == [plain]
    post(http, f"{job}/holds", at_most=1, reason="x", hold=plain)
    http.delete(f"{job}/holds/{name}").raise_for_status()
    http.delete(job).raise_for_status()
    assert http.get(job).status_code == 410


@pytest.mark.parametrize(
    "path", ["JOB%2Fwatermark", "JOB%2fholds/h", "/v1%2Fjobs", "/v1/jobs//h", "//v1/jobs", "JOB;a=b/watermark"]
)
def test_a_path_has_one_spelling(tidegate: CoordinatorProcess, make_job: Make, path: str) -> None:
    """A proxy with a rule for a path, and the coordinator, must see the same path."""
    status, _ = raw(tidegate.url, "GET", path.replace("JOB", make_job()))
    assert status in (404, 422)


def test_names_of_older_versions(own: LocalCoordinator) -> None:
    """What has a dot segment as its name can still be read and removed, as the page about troubleshooting describes."""
    store = Driver(own.redis_url)
    config = JobConfig(LimitingLag(10), expected_queries=("..",))
    for job in ("..", "job"):
        store(store.store.configure(job, config, CONFIG | {"expected_queries": [".."]}, None))
        store(store.store.actions.hold(job, "..", 5))
    with httpx.Client(base_url=own.url, timeout=30) as http:
        listed = {status["job"]: status for status in read(http, "/v1/jobs")["jobs"]}
        assert [listed[job]["missing_queries"] for job in ("..", "job")] == [[".."], [".."]]
        assert read(http, "/v1/jobs/job")["config"]["expected_queries"] == [".."]
        assert read(http, "/v1/jobs/job:explain")["holders"]
        assert http.get("/").status_code == http.get("/jobs/job").status_code == 200
        token = re.search(r'name="token" value="([^"]+)"', http.get("/jobs/job/act/release?hold=..").text)
        assert token is not None
        form = {"token": token.group(1), "reason": "x"}
        for verb, target in (("release", {"hold": ".."}), ("retire", {"query": ".."})):
            assert http.post(f"/jobs/job/act/{verb}", data=form | target).status_code == 303
        status = read(http, "/v1/jobs/job")
        assert (status["holds"], status["missing_queries"]) == ([], [])
        redis = redis_sync.Redis.from_url(own.redis_url)
        redis.unlink(*redis.scan_iter(match="tidegate:{..}*"))
        redis.srem("tidegate:jobs", "..")
        redis.zrem("tidegate:sweeps", "..")
        assert [status["job"] for status in read(http, "/v1/jobs")["jobs"]] == ["job"]
        redis.close()
    store.close()
