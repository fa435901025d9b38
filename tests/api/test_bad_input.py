"""The API answers invalid input with problem+json and changes nothing."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.api import CONFIG, RUN, problem
from tidegate_spark.testing import CoordinatorProcess

Make = Callable[..., str]
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"policy": {"type": "limiting_lag", "lag_ms": -1}}, "policy.lag_ms"),
        ({"policy": {"type": "limiting_lag", "lag_ms": 1.5}}, "policy.lag_ms"),
        ({"policy": {"type": "limiting_lag"}}, "policy.lag_ms"),
        ({"policy": {"type": "no_such"}}, "policy.type"),
        (CONFIG | {"idle_timeout_ms": 0}, "idle_timeout_ms"),
        (CONFIG | {"idle_timout_ms": 5}, "idle_timout_ms"),
        (CONFIG | {"throttle": {"type": "frame", "size_ms": 10, "slide_ms": 3}}, "throttle.size_ms"),
        (CONFIG | {"throttle": {"type": "frame", "size_ms": 10, "offset_ms": 10}}, "throttle.offset_ms"),
    ],
)
def test_an_invalid_configuration_names_its_field(
    http: httpx.Client, job_name: str, config: object, field: str
) -> None:
    """A configuration with a misspelt limit is refused, so the limit cannot be off by mistake."""
    answer = http.put(f"/v1/jobs/{job_name}", json=config, headers={"If-None-Match": "*"})
    code = "invalid_config" if field.startswith("throttle") else "invalid_request"
    assert problem(answer, 422, code)["field"] == field
    problem(http.get(f"/v1/jobs/{job_name}"), 404, "job_not_found")


def test_errors_name_members_of_the_request(http: httpx.Client, make_job: Make) -> None:
    """Error details name members of the request, not pydantic models or tags."""
    path = make_job()
    for body, detail in (
        ({"policy": {"type": "sliding"}}, "policy.type: must be one of 'limiting_lag', 'limiting_lag_and_delay', "),
        ({"policy": {"lag_ms": 5}}, "policy.type: is missing"),
        ({"policy": {"type": "limiting_lag"}}, "policy.lag_ms: is missing"),
        (CONFIG | {"idle_timout_ms": 5}, "idle_timout_ms: is not a known member"),
    ):
        answer = http.put(path, json=body, headers={"If-Match": "*"})
        assert problem(answer, 422, "invalid_request")["detail"].startswith(detail)
    broken = http.post(f"{path}:report", content=b'{"substreams": [', headers=JSON)
    assert problem(broken, 422, "invalid_request")["detail"].startswith("the body is not valid JSON (EOF")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"substreams": ["a", "b"], "max_event_times": [1]}, "max_event_times"),
        ({"substreams": ["a"], "max_event_times": [1], "counts": [1, 2]}, "counts"),
        ({"substreams": ["a"], "max_event_times": [1], "min_event_times": []}, "min_event_times"),
        ({"substreams": ["a"], "max_event_times": [1.5]}, "max_event_times.0"),
        ({"substreams": ["a"], "max_event_times": ["1"]}, "max_event_times.0"),
        ({"substreams": ["a"], "max_event_times": [True]}, "max_event_times.0"),
        ({"substreams": ["a", "b"], "max_event_times": [1, 2**53]}, "max_event_times.1"),
        ({"substreams": ["a"], "max_event_times": [-(2**53)]}, "max_event_times.0"),
        ({"substreams": ["a"], "max_event_times": [10**400]}, "max_event_times.0"),
        ({"substreams": ["a", "a"], "max_event_times": [1, 2]}, "substreams"),
        ({"substreams": [""], "max_event_times": [1]}, "substreams"),
        ({"substreams": ["x" * 201], "max_event_times": [1]}, "substreams"),
        ({"substreams": ["ä" * 101], "max_event_times": [1]}, "substreams"),
        ({"substreams": ["a\nb"], "max_event_times": [1]}, "substreams"),
        ({"substreams": ["a"], "max_event_times": [1], "colour": "red"}, "colour"),
        ({}, "substreams"),
    ],
)
def test_a_bad_report_names_its_field_and_changes_nothing(
    http: httpx.Client, make_job: Make, body: object, field: str
) -> None:
    """An invalid report has no effect."""
    path = make_job()
    http.post(f"{path}:report", json={"substreams": ["a", "b"], "max_event_times": [100, 100]}).raise_for_status()
    before = http.get(f"{path}/substreams").json()["substreams"]
    answer = http.post(f"{path}:report", content=json.dumps(body), headers=JSON)
    assert problem(answer, 422, "invalid_request")["field"] == field
    assert http.get(f"{path}/substreams").json()["substreams"] == before


def test_the_largest_event_times_are_exact(http: httpx.Client, make_job: Make) -> None:
    """Event times of ±(2^53 - 1) ms are accepted and stored exactly."""
    path = make_job(policy={"type": "limiting_lag", "lag_ms": 0}, max_future_skew_ms=None)
    for time in (-(2**53) + 1, 2**53 - 1):
        answer = http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [time]})
        assert answer.json()["watermark"] == time


def test_whole_numbers_are_accepted_in_any_notation(http: httpx.Client, make_job: Make) -> None:
    """Whole numbers such as 1.0 and 2e3 are accepted. A number that a double would round to a whole one is refused."""
    path = make_job(max_future_skew_ms=None)
    for text, time in (("1.0", 1), ("2e3", 2000), ("9007199254740990.0", 9007199254740990)):
        content = f'{{"substreams": ["a"], "max_event_times": [{text}]}}'
        assert http.post(f"{path}:report", content=content, headers=JSON).json()["coalesced_watermark"] == time - 10
    for text in ("9007199254740990.3", "1e400", "1e999999999", "1e-99999999999999999999", "9007199254740992.0"):
        content = f'{{"substreams": ["a"], "max_event_times": [{text}]}}'
        problem(http.post(f"{path}:report", content=content, headers=JSON), 422, "invalid_request")


def test_a_substream_without_event_times_is_not_created(http: httpx.Client, make_job: Make) -> None:
    """A substream whose rows all lack an event time is not created."""
    path = make_job()
    answer = http.post(f"{path}:report", json={"substreams": ["a", "b"], "max_event_times": [None, 50]})
    assert answer.json()["watermark"] == 40
    assert [row["substream"] for row in http.get(f"{path}/substreams").json()["substreams"]] == ["b"]


def test_every_call_refuses_an_unknown_job(http: httpx.Client, job_name: str) -> None:
    """Every call for an unknown job is answered with 404, and none creates the job."""
    path = f"/v1/jobs/{job_name}"
    batch = f"{path}/queries/q/batches/0"
    report = {"substreams": ["a"], "max_event_times": [1]}
    for answer in (
        http.get(path),
        http.delete(path),
        http.put(path, json=CONFIG, headers={"If-Match": "*"}),
        http.post(f"{path}:report", json=report),
        http.post(f"{path}:report", json=report | {"batch": {"query": "q", **RUN, "batch_id": 0, "partition": 0}}),
        http.put(batch, json=RUN),
        http.post(f"{batch}:commit", json=RUN),
        http.post(f"{path}/queries/q:heartbeat", json=RUN | {"observed_ms": 0}),
        http.post(f"{path}:declare", json={"substreams": ["a"]}),
        http.post(f"{path}/substreams:done", json={"substreams": ["a"]}),
        http.post(f"{path}:complete", json={}),
        http.get(f"{path}/watermark"),
        http.get(f"{path}/substreams"),
        http.get(f"{path}/queries"),
    ):
        problem(answer, 404, "job_not_found")
    assert job_name not in [listed["job"] for listed in http.get("/v1/jobs", params={"limit": 1000}).json()["jobs"]]


def test_a_commit_of_an_unknown_batch_is_refused(http: httpx.Client, make_job: Make) -> None:
    """A commit without a begin is refused, and its rows are not counted."""
    path = make_job()
    rows = {"substreams": ["a"], "on_time": [1], "late": [0], "null_event_time": [0]}
    answer = http.post(f"{path}/queries/q/batches/3:commit", json=RUN | {"rows": rows})
    assert problem(answer, 409, "batch_not_begun")["batch_id"] == 3
    assert http.get(path).json()["rows"]["on_time"] == 0


def test_a_body_over_the_limit(http: httpx.Client, make_job: Make) -> None:
    """The limit applies to bodies with a Content-Length and to chunked bodies."""
    path = make_job()
    whole = b"[" + b"1," * 40_000 + b"1]"

    def chunks() -> Iterator[bytes]:
        for first in range(0, len(whole), 1000):
            yield whole[first : first + 1000]

    for content in (whole, chunks()):
        answer = http.post(f"{path}:report", content=content, headers=JSON)
        assert problem(answer, 413, "body_too_large")["max_body_bytes"] == 65536


def test_a_body_over_the_limit_is_refused_by_calls_without_a_body(http: httpx.Client, make_job: Make) -> None:
    """A body over the limit is refused even if the call does not read a body."""
    path = make_job()
    pieces = (b"x" * 1000 for _ in range(100))
    answer = http.request("GET", f"{path}/watermark?at_least=5&timeout_s=20", content=pieces)
    problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"substreams": "a"}', b"\xff\xfe"])
def test_an_invalid_body_is_refused(http: httpx.Client, make_job: Make, body: bytes) -> None:
    """Invalid JSON and JSON of another structure are refused."""
    problem(http.post(f"{make_job()}:report", content=body, headers=JSON), 422, "invalid_request")


def test_cross_site_requests_are_refused(http: httpx.Client, tidegate: CoordinatorProcess, make_job: Make) -> None:
    """Cross-site POST requests without a body are refused. A browser would send them, and they would reset the job."""
    path = make_job()
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers, status, code in (
        ({"origin": "https://evil.example", **form}, 403, "foreign_origin"),
        ({"origin": "null", **JSON}, 403, "foreign_origin"),
        ({"sec-fetch-site": "cross-site", **JSON}, 403, "foreign_origin"),
        ({"sec-fetch-site": "same-site", **JSON}, 403, "foreign_origin"),
        (form, 415, "not_json"),
        ({}, 415, "not_json"),
    ):
        for call in (f"{path}:reset", f"{path}:complete", f"{path}:reopen"):
            problem(http.post(call, headers=headers), status, code)
    problem(http.get(path, headers={"sec-fetch-site": "cross-site"}), 403, "foreign_origin")
    assert [record["kind"] for record in http.get(f"{path}/history").json()["records"]] == ["created"]
    own = {"origin": tidegate.url, "sec-fetch-site": "same-origin", **JSON}
    assert http.post(f"{path}:reopen", headers=own).status_code == 200


def test_other_hosts_content_types_and_paths_are_refused(http: httpx.Client, make_job: Make) -> None:
    """Requests that a foreign web page can send from a browser do not move a watermark."""
    path = make_job()
    problem(http.get(path, headers={"host": "rebound.example:8000"}), 421, "foreign_host")
    problem(http.post(f"{path}:report", data={"substreams": "a"}), 415, "not_json")
    problem(http.get("/v1/jobs/a:b/watermark"), 404, "no_such_path")
    problem(http.get("/v1/jobs/ä/watermark"), 422, "invalid_request")
    problem(http.get("/v2"), 404, "no_such_path")
    not_allowed = http.patch(path, json={})
    problem(not_allowed, 405, "method_not_allowed")
    assert not_allowed.headers["allow"] == "DELETE, GET, PUT"
    problem(http.put(f"{path}:report", json={}), 405, "method_not_allowed")
    problem(http.get(f"{path}/watermark", params={"at_least": "soon"}), 422, "invalid_request")
