"""Batches, their replays, the table of substreams and long polls over HTTP."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.api import RUN

Make = Callable[..., str]


def run_batch(http: httpx.Client, path: str, batch_id: int, max_event_times: dict[str, int]) -> dict[str, object]:
    """Begin, report and commit a batch; return the answer to the commit."""
    batch = f"{path}/queries/q/batches/{batch_id}"
    http.put(batch, json=RUN).raise_for_status()
    report = {
        "substreams": list(max_event_times),
        "max_event_times": list(max_event_times.values()),
        "counts": [2] * len(max_event_times),
        "batch": {"query": "q", **RUN, "batch_id": batch_id, "partition": 0},
    }
    for _ in range(2):  # the repetition has no effect
        http.post(f"{path}:report", json=report).raise_for_status()
    rows = {
        "substreams": list(max_event_times),
        "on_time": [1] * len(max_event_times),
        "late": [1] * len(max_event_times),
        "null_event_time": [0] * len(max_event_times),
    }
    answer: dict[str, object] = http.post(f"{batch}:commit", json=RUN | {"rows": rows}).raise_for_status().json()
    return answer


def test_a_repeated_batch_counts_once(http: httpx.Client, make_job: Make) -> None:
    """A repeated begin, report or commit has no effect."""
    path = make_job()
    first = run_batch(http, path, 0, {"fast": 500, "slow": 100})
    assert (first["watermark"], first["applied"]) == (90, True)
    assert first["held_by"]["substream"] == "slow"  # type: ignore[index]
    assert run_batch(http, path, 0, {"fast": 900, "slow": 900})["applied"] is False
    replay = http.put(f"{path}/queries/q/batches/0", json=RUN).json()
    assert (replay["pinned_watermark"], replay["replayed"]) == (None, True)
    table = {row["substream"]: row for row in http.get(f"{path}/substreams").json()["substreams"]}
    assert (table["fast"]["max_event_time"], table["fast"]["skew"], table["slow"]["skew"]) == (500, -400, 0)
    assert (table["slow"]["reported"], table["slow"]["rows"]["late"]) == (2, 1)
    assert http.get(path).json()["rows"] == {"on_time": 2, "updated": 0, "late": 2, "null_event_time": 0, "future": 0}
    query = http.get(f"{path}/queries").json()["queries"][0]
    assert (query["query"], query["batch_id"], query["batch_open"]) == ("q", 0, False)


def test_a_query_confirms_the_silence_of_some_substreams(http: httpx.Client, make_job: Make) -> None:
    """A partition that was read to its end must not hold a query whose other partitions have a backlog."""
    path = make_job(idle_timeout_ms=1)
    run_batch(http, path, 0, {"busy": 500, "silent": 100, "behind": 200})
    time.sleep(0.01)
    batch = f"{path}/queries/q/batches/1"
    http.put(batch, json=RUN).raise_for_status()
    http.post(f"{path}/queries/q:heartbeat", json=RUN | {"observed_ms": 0, "caught_up": []}).raise_for_status()
    http.post(f"{batch}:commit", json=RUN | {"caught_up": ["silent"]}).raise_for_status()
    states = {row["substream"]: row["state"] for row in http.get(f"{path}/substreams").json()["substreams"]}
    assert states == {"busy": "blocked", "silent": "idle", "behind": "blocked"}
    now_ms = http.get(path).json()["now_ms"]
    http.post(f"{path}/queries/q:heartbeat", json=RUN | {"observed_ms": now_ms, "caught_up": ["behind"]})
    states = {row["substream"]: row["state"] for row in http.get(f"{path}/substreams").json()["substreams"]}
    assert states == {"busy": "blocked", "silent": "idle", "behind": "idle"}
    too_many = {"caught_up": [str(number) for number in range(501)]}
    refused = http.post(f"{batch}:commit", json=RUN | too_many)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "caught_up")


def test_the_table_of_substreams_is_paged(http: httpx.Client, make_job: Make) -> None:
    """Paging returns every name once, whatever characters the names contain."""
    path = make_job()
    names = sorted(["a", "a/b", "ä", "😀", '"', "z&y=1", "‏ש"])
    http.post(f"{path}:report", json={"substreams": names, "max_event_times": [1] * len(names)}).raise_for_status()
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = http.get(f"{path}/substreams", params={"limit": 2, "after": after}).json()
        found += [row["substream"] for row in page["substreams"]]
        after = page["next"]
    assert found == names


def test_pages_are_sorted_by_query_and_name(http: httpx.Client, make_job: Make) -> None:
    """Rows are sorted by the pair of query and substream. A sort of `query/substream` would put `a-b` before `a`."""
    path = make_job()
    for query in ("a", "a-b", "a.c", "b"):
        http.post(f"{path}:declare", json={"query": query, "substreams": ["x", "y"]}).raise_for_status()
    found = []
    after: str | None = ""
    while after is not None:
        page = http.get(f"{path}/substreams", params={"limit": 1, "after": after}).json()
        found += [(row["query"], row["substream"]) for row in page["substreams"]]
        after = page["next"]
    assert found == [(query, name) for query in ("a", "a-b", "a.c", "b") for name in ("x", "y")]


def test_waiting_ends_with_the_watermark_or_with_the_time(http: httpx.Client, make_job: Make) -> None:
    """The coordinator answers a waiting consumer when the watermark reaches the requested value."""
    path = make_job()
    waited = http.get(f"{path}/watermark", params={"at_least": 5, "timeout_s": 0.2}).json()
    assert (waited["reached"], waited["watermark"]) == (False, None)
    with ThreadPoolExecutor(1) as pool:
        asked = threading.Event()

        def wait() -> tuple[float, dict[str, object]]:
            asked.set()
            answer = http.get(f"{path}/watermark", params={"at_least": 90, "timeout_s": 60}).json()
            return time.monotonic(), answer

        waiting = pool.submit(wait)
        asked.wait()
        time.sleep(0.3)
        http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [50]}).raise_for_status()
        assert not waiting.done()
        reported_at = time.monotonic()
        http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [100]}).raise_for_status()
        woken_at, answer = waiting.result()
    assert (answer["reached"], answer["watermark"]) == (True, 90)
    assert woken_at - reported_at < 4, "the client was not notified; the coordinator answered after its own check"


def test_the_sweeper_makes_silent_substreams_idle(http: httpx.Client, make_job: Make) -> None:
    """The sweeper makes silent substreams idle without any call to the job."""
    path = make_job(idle_timeout_ms=300)
    http.post(f"{path}:report", json={"substreams": ["a", "b"], "max_event_times": [500, 50]}).raise_for_status()
    deadline = time.monotonic() + 30
    table: dict[str, str] = {}
    while time.monotonic() < deadline and set(table.values()) != {"idle"}:
        # Reading the table evaluates nothing, so only the sweeper can change these states.
        table = {row["substream"]: row["state"] for row in http.get(f"{path}/substreams").json()["substreams"]}
        time.sleep(0.05)
    assert table == {"a": "idle", "b": "idle"}
    assert http.get(f"{path}/substreams").json()["watermark"] == 490
