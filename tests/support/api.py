"""Requests to a coordinator's REST API that several test folders share."""

import re
from pathlib import Path
from typing import Any

import httpx

from tidegate.domain.completeness import bucket_of
from tidegate_spark import Job

DOCUMENT = Path(__file__).parents[2] / "openapi" / "tidegate.v1.json"
CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
RUN: dict[str, Any] = {"query_id": "checkpoint", "run_id": "run-1"}
HOUR = 3_600_000
BASE = 1_357_552_800_000  # 2013-01-07 10:00
HOURS = {"frames": {"every": "hour", "correction_delay_ms": 0}}
FRAMES = {"throttle": {"type": "frame", "size_ms": HOUR, "slide_ms": HOUR, "offset_ms": 0}}


def operate(job: Job, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make a call for which the client has no method; ``path`` is relative to the URL of the job."""
    url = f"{job.connection.url}/v1/jobs/{job.connection.job}{path}"
    answer = httpx.request(method, url, json=body, timeout=30, verify=url.startswith("https:")).raise_for_status()
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found


def read(http: httpx.Client, path: str, **parameters: Any) -> dict[str, Any]:
    """Return the JSON object at ``path``."""
    answer = http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a problem document with this status and code; return the document."""
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), document
    assert document["type"] == f"urn:tidegate:problem:{code}"
    assert document["status"] == status
    assert len(document["detail"]) > 10
    return document


def create(http: httpx.Client, job: str, **config: Any) -> str:
    """Create a job with a lag of 10 ms; return its name."""
    http.put(f"/v1/jobs/{job}", json=CONFIG | config, headers={"If-None-Match": "*"}).raise_for_status()
    return job


def report(http: httpx.Client, job: str, max_event_times: dict[str, int]) -> None:
    """Report event times without a batch."""
    body = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())}
    http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()


def report_delays(
    http: httpx.Client, path: str, delays: dict[str, list[tuple[int, int]]], max_event_time: int = 1000
) -> None:
    """Report rows by delay: for each substream, pairs of a delay in ms and a number of rows."""
    columns = [[(bucket_of(delay), rows) for delay, rows in counted] for counted in delays.values()]
    body = {"substreams": list(delays), "max_event_times": [max_event_time] * len(delays), "delays": columns}
    answer = http.post(f"{path}:report", json=body)
    assert answer.status_code == 200, answer.text


def batch(
    http: httpx.Client,
    job: str,
    number: int,
    max_event_times: dict[str, int],
    rows: dict[str, Any] | None = None,
    *,
    open_: bool = False,
) -> None:
    """Begin, report and (unless ``open_``) commit a batch of the query ``departures``.

    Without ``rows``, which are columns of numbers of rows, each substream has 40 rows on time and 2 late rows.
    """
    path = f"/v1/jobs/{job}/queries/departures/batches/{number}"
    http.put(path, json=RUN).raise_for_status()
    reference = {"query": "departures", **RUN, "batch_id": number, "partition": 0}
    body = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values()), "batch": reference}
    http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()
    if not open_:
        columns = rows or {"on_time": [40] * len(max_event_times), "late": [2] * len(max_event_times)}
        none = {"null_event_time": [0] * len(max_event_times)}
        counted = {"substreams": list(max_event_times), **none, **columns}
        http.post(f"{path}:commit", json={**RUN, "rows": counted}).raise_for_status()


def commit_rows(http: httpx.Client, path: str, batch_id: int, **rows: Any) -> None:
    """Begin, report and commit a batch of the query ``q`` with these columns of rows."""
    batch = f"{path}/queries/q/batches/{batch_id}"
    assert http.put(batch, json=RUN).status_code == 200
    names = rows["substreams"]
    body = {"substreams": names, "max_event_times": [1] * len(names)}
    of_batch = RUN | {"query": "q", "batch_id": batch_id, "partition": 0}
    assert http.post(f"{path}:report", json=body | {"batch": of_batch}).status_code == 200
    none = [0] * len(names)
    rows = {"on_time": none, "late": none, "null_event_time": none} | rows
    answer = http.post(f"{batch}:commit", json=RUN | {"rows": rows})
    assert answer.status_code == 200, answer.text


def commit_frames(
    http: httpx.Client, path: str, number: int, times: dict[str, int], late: int = 0, **told: Any
) -> dict[str, Any]:
    """Begin, report and commit a batch of the query ``q`` with a row of each substream, counted by frame.

    ``late`` is a number of further rows at :data:`BASE`, which are dropped. ``told`` are further members of the commit.
    Return the answer to the commit.
    """
    batch = f"{path}/queries/q/batches/{number}"
    http.put(batch, json=RUN).raise_for_status()
    body = {"substreams": list(times), "max_event_times": list(times.values()), "counts": [1] * len(times)}
    of_batch = RUN | {"query": "q", "batch_id": number, "partition": 0}
    http.post(f"{path}:report", json=body | {"batch": of_batch}).raise_for_status()
    frames = [[at, 1, 0, 0] for at in times.values()] + ([[BASE, late, 0, late]] if late else [])
    none = [0] * len(times)
    rows = {"substreams": list(times), "on_time": [1] * len(times), "late": [late, *none[1:]], "null_event_time": none}
    answer = http.post(f"{batch}:commit", json=RUN | {"rows": rows | {"frames": frames}} | told)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def login(http: httpx.Client, key: str) -> httpx.Response:
    """Log in to the operators' page, as its form does."""
    page = http.get("/login").text
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    return http.post("/login", data={"key": key, "token": token.group(1)})
