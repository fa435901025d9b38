"""Frames over HTTP: which hours are complete, what was left out, and what has changed since."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.api import BASE, CONFIG, HOUR, HOURS, RUN, commit_frames, problem, read

Make = Callable[..., str]


def test_hours_are_complete_when_the_watermark_has_passed_their_end(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE, "b": BASE + 5})
    found = read(http, f"{path}/frames")
    assert [(frame["start"], frame["state"]) for frame in found["frames"]] == [(BASE, "open")]
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11, "b": BASE + HOUR + 12})
    commit_frames(http, path, 2, {"a": BASE + 3 * HOUR + 11, "b": BASE + 3 * HOUR + 11})
    found = read(http, f"{path}/frames")
    states = [(frame["start"] - BASE, frame["state"], frame["generation"]) for frame in found["frames"]]
    assert states == [
        (3 * HOUR, "open", None),
        (2 * HOUR, "empty", 1),
        (HOUR, "complete", 1),
        (0, "complete", 1),
    ]
    first = found["frames"][-1]
    assert first["rows"] == {"on_time": 2, "updated": 0, "dropped": 0, "diverted": 0}
    assert (first["uncounted"], first["exclusions"], first["queries"]) == (False, [], [{"query": "q", "batch_id": 1}])
    assert (first["end"], first["read_ms"]) == (BASE + HOUR, first["finished_ms"])
    assert found["finished"] == {"complete": 2, "empty": 1} and found["unfinished"] == BASE + 3 * HOUR
    [movement] = [
        record
        for record in read(http, f"{path}/history", kind="emission")["records"]
        if record["id"] == first["record_id"]
    ]
    assert movement["watermark"] == first["watermark"] == BASE + HOUR + 1
    told = read(http, f"{path}/history", kind="frame")["records"]
    assert [(record["start"] - BASE, record["count"], record.get("empty")) for record in told] == [
        (HOUR, 2, 1),
        (0, 1, None),
    ]


def test_late_rows_make_a_new_generation(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE})
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert (frame["state"], frame["generation"], frame["rows"]["dropped"]) == ("complete", 2, 3)
    first, second = frame["generations"]
    assert (first["reason"], first["rows"]["on_time"]) == ("", 1)
    assert second["rows"] == {"on_time": 0, "updated": 0, "dropped": 3, "diverted": 0}
    [told, _] = read(http, f"{path}/history", kind="frame")["records"]
    assert (told["generation"], told["reason"], told["dropped"]) == (2, "rows", 3)


def test_changes_are_collected_before_they_make_a_generation(http: httpx.Client, make_job: Make) -> None:
    path = make_job(frames={"every": "hour", "correction_delay_ms": 700})
    commit_frames(http, path, 0, {"a": BASE})
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    began = time.monotonic()
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    commit_frames(http, path, 3, {"a": BASE + HOUR + 13}, late=1)
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    if time.monotonic() - began < 0.5:
        assert (frame["generation"], frame["changes"]["dropped"]) == (1, 4)
        assert frame["rows"]["dropped"] == 4
    deadline = time.monotonic() + 20
    while frame["generation"] == 1 and time.monotonic() < deadline:  # the sweeper makes the generation
        time.sleep(0.1)
        frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert [each["rows"]["dropped"] for each in frame["generations"]] == [0, 4]
    assert frame["changes"] is None


def test_a_substream_that_timed_out_is_excluded(http: httpx.Client, make_job: Make) -> None:
    """Without its data, a frame with rows is complete with exclusions, and a frame without rows stays open."""
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE, "b": BASE})
    http.post(f"{path}/substreams:idle", json={"query": "q", "substreams": ["b"], "reason": "t"}).raise_for_status()
    commit_frames(http, path, 1, {"a": BASE + 2 * HOUR + 11})
    last, middle, first = read(http, f"{path}/frames")["frames"]
    assert [frame["state"] for frame in (first, middle, last)] == ["complete_with_exclusions", "open", "open"]
    [exclusion] = first["exclusions"]
    assert (exclusion["reason"], exclusion["count"]) == ("idle", 1)
    assert exclusion["substreams"] == [{"substream": "q/b", "watermark": BASE - 10}]
    assert read(http, f"{path}/history", kind="frame")["records"][0]["state"] == "complete_with_exclusions"
    # b has no rows of the second hour, as its next row shows
    commit_frames(http, path, 2, {"a": BASE + 2 * HOUR + 12, "b": BASE + 2 * HOUR + 11})
    assert read(http, f"{path}/frames/{BASE + HOUR}")["frame"]["state"] == "empty"
    assert read(http, f"{path}/frames/{BASE}")["frame"]["state"] == "complete_with_exclusions"


def test_a_client_waits_for_a_frame(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE})
    began = time.monotonic()
    assert read(http, f"{path}/frames/{BASE}", wait_s=0.2)["frame"]["state"] == "open"
    assert time.monotonic() - began >= 0.2
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(read, http, f"{path}/frames/{BASE + 7}", wait_s=30)
        time.sleep(0.3)
        commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
        frame = waiting.result()["frame"]
    assert (frame["start"], frame["state"]) == (BASE, "complete")


def test_a_frame_is_not_finished_before_its_windows_are_written(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    for number, at in enumerate((BASE, BASE + HOUR + 11)):
        batch = f"{path}/queries/q/batches/{number}"
        http.put(batch, json=RUN | {"output_watermark": None}).raise_for_status()
        of_batch = RUN | {"query": "q", "batch_id": number, "partition": 0}
        body = {"substreams": ["a"], "max_event_times": [at], "batch": of_batch}
        http.post(f"{path}:report", json=body).raise_for_status()
        none = {"late": [0], "null_event_time": [0]}
        rows = {"substreams": ["a"], "on_time": [1], "frames": [[at, 1, 0, 0]], **none}
        http.post(f"{batch}:commit", json=RUN | {"rows": rows}).raise_for_status()
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert (frame["state"], frame["rows"]["on_time"]) == ("open", 1)
    assert frame["read_ms"] is not None and frame["finished_ms"] is None
    explained = read(http, f"{path}:explain")
    assert explained["frame"] == {"start": BASE, "end": BASE + HOUR}
    body = RUN | {"observed_ms": 0, "after_batch": 1, "output_watermark": BASE + HOUR + 1}
    http.post(f"{path}/queries/q:heartbeat", json=body).raise_for_status()
    assert read(http, f"{path}/frames/{BASE}")["frame"]["state"] == "complete"


def test_pages_of_frames(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    for number in range(12):
        commit_frames(http, path, number, {"a": BASE + number * HOUR + 11})
    page = read(http, f"{path}/frames", limit=5)
    assert [frame["start"] for frame in page["frames"]] == [BASE + at * HOUR for at in (11, 10, 9, 8, 7)]
    following = read(http, f"{path}/frames", limit=5, to=page["next"])
    assert [frame["start"] for frame in following["frames"]] == [BASE + at * HOUR for at in (6, 5, 4, 3, 2)]
    some = read(http, f"{path}/frames", **{"from": BASE + 2 * HOUR + 5, "to": BASE + 4 * HOUR, "state": "complete"})
    assert [frame["start"] for frame in some["frames"]] == [BASE + 3 * HOUR, BASE + 2 * HOUR]
    assert some["next"] is None
    one = read(http, f"{path}/frames", state="complete", limit=1)
    assert (one["frames"][0]["start"], one["next"]) == (BASE + 10 * HOUR, BASE + 10 * HOUR)


def test_a_day_of_a_time_zone_is_one_frame(http: httpx.Client, make_job: Make) -> None:
    """On 10 March 2013, the clocks of New York skipped an hour."""
    path = make_job(frames={"every": "day", "time_zone": "America/New_York"})
    start, end = 1_362_891_600_000, 1_362_974_400_000
    commit_frames(http, path, 0, {"a": start})
    commit_frames(http, path, 1, {"a": end - 1})
    commit_frames(http, path, 2, {"a": end + 11})
    frame = read(http, f"{path}/frames/{start + 5 * HOUR}")["frame"]
    assert (frame["start"], frame["end"], end - start) == (start, end, 23 * HOUR)
    assert (frame["state"], frame["rows"]["on_time"]) == ("complete", 2)


def test_a_reset_makes_a_new_generation(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    for number, at in enumerate((BASE, BASE + HOUR + 11)):
        commit_frames(http, path, number, {"a": at})
    http.post(f"{path}:reset", json={"reason": "again"}).raise_for_status()
    for number, at in enumerate((BASE, BASE + HOUR + 11)):
        commit_frames(http, path, number, {"a": at})
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert (frame["generation"], frame["generations"][0]["reason"]) == (2, "reset")


def test_a_job_without_frames_has_none(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    problem(http.get(f"{path}/frames"), 409, "frames_not_declared")
    problem(http.get(f"{path}/frames/{BASE}"), 409, "frames_not_declared")
    problem(http.get(f"{path}/frames/{BASE}", params={"wait_s": 1}), 409, "frames_not_declared")


def test_a_frame_before_the_first_one_is_refused(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE})
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    problem(http.get(f"{path}/frames/{BASE - 1}"), 404, "frame_not_found")
    assert "seconds" in problem(http.get(f"{path}/frames/{BASE // 1000}"), 422, "invalid_request")["detail"]


@pytest.mark.parametrize(
    ("frames", "field"),
    [
        ({"every": "week"}, "frames.every"),
        ({"every": 0}, "frames.every"),
        ({"every": "day", "time_zone": "Mars/Olympus"}, "frames.time_zone"),
        ({"every": "day", "time_zone": "../../etc/passwd"}, "frames.time_zone"),
        ({"every": "hour", "time_zone": "Asia/Kolkata"}, "frames.time_zone"),
        ({"every": "hour", "offset_ms": HOUR}, "frames.offset_ms"),
        ({"every": "day", "offset_ms": 1000}, "frames.offset_ms"),
        ({"every": "hour", "correction_delay_ms": -1}, "frames.correction_delay_ms"),
    ],
)
def test_a_wrong_declaration_is_refused(http: httpx.Client, job_name: str, frames: dict[str, Any], field: str) -> None:
    answer = http.put(f"/v1/jobs/{job_name}", json=CONFIG | {"frames": frames}, headers={"If-None-Match": "*"})
    assert field in problem(answer, 422, answer.json()["code"])["field"]


def test_rows_by_frame_must_not_exceed_the_counts(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    http.put(f"{path}/queries/q/batches/0", json=RUN).raise_for_status()
    rows = {"substreams": ["a"], "on_time": [1], "late": [0], "null_event_time": [0], "frames": [[BASE, 2, 0, 0]]}
    answer = http.post(f"{path}/queries/q/batches/0:commit", json=RUN | {"rows": rows})
    assert problem(answer, 422, "invalid_request")["field"] == "rows.frames"


def test_an_open_frame_is_predicted_from_earlier_ones(http: httpx.Client, make_job: Make) -> None:
    """Frames of 50 ms that follow the clock: what was learned is shown, and when the open frame is expected."""
    length = 50
    path = make_job(frames={"every": length, "correction_delay_ms": 0})
    assert read(http, f"{path}/frames")["calibration"] is None
    assert read(http, f"{path}/frames/{BASE}")["frame"]["prediction"] is None
    number, counts = 0, [0]
    while counts[-1] < 10 and number < 300:
        now_ms = read(http, path)["now_ms"]
        commit_frames(http, path, number, {"a": now_ms})
        time.sleep(length / 1000)
        number += 1
        calibration = read(http, f"{path}/frames")["calibration"]
        counts.append(calibration["frames"] if calibration else 0)
    page = read(http, f"{path}/frames")
    latest = page["frames"][0]
    assert latest["state"] == "open"
    prediction = latest["prediction"]
    assert prediction["frames"] >= 19
    assert prediction["latest_ms"] >= latest["end"]
    assert prediction["overdue"] == (prediction["latest_ms"] < page["now_ms"])
    assert 0 < page["calibration"]["held"] <= 1
    assert all(frame["prediction"] is None for frame in page["frames"] if frame["state"] != "open")
    explained = read(http, f"{path}:explain")
    assert explained["prediction"]["frames"] >= 19
    for _ in range(100):  # frames that are finished meanwhile change what is learned
        near, far, again = (
            read(http, f"{path}/frames/{latest['start'] + later * HOUR}")["frame"]["prediction"] for later in (1, 2, 1)
        )
        if near == again:
            break
    assert near["frames"] >= 19
    assert far["latest_ms"] - near["latest_ms"] == HOUR, "neither has ended, so all delays count for both"
