"""The checks of the fault suite find each falsified answer in a history of real clients, and nothing else."""

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.suite import checks
from tests.faults.suite.accounting import CLASSES, check_rows
from tests.faults.suite.checks import Losses, Violation
from tests.faults.suite.frames import check_events, check_frame_rows, check_frames
from tests.faults.suite.history import Call, History, Recorder
from tests.faults.suite.model import check_model
from tests.faults.suite.plan import JobPlan
from tests.faults.suite.reporter import Client, Reader, Reporter
from tests.faults.suite.transport import RecordedTransport
from tests.faults.suite.world import Loss
from tests.faults.suite.writer import Settings, Writer
from tests.support.local import LocalCoordinator
from tests.support.waiting import until
from tidegate.store.embedded import EmbeddedValkey

DIRECT = JobPlan("direct", {"r0": ("a", "b"), "r1": ("c",), "r2": ("d",)}, {})
BATCHES = JobPlan("batches", {"r3": ("gate",)}, {"q": ("HNL", "ORD")})
NO_LOSS = Losses(())
CALLS = 150
BATCH_COUNT = 8


class Recorded(NamedTuple):
    """A history, and what the coordinator has counted at its end."""

    directory: Path
    counted: dict[str, int]
    frames: list[dict[str, Any]]


@pytest.fixture(scope="module")
def recorded(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the directory of a history of both jobs, and the row counts and frames of the job with batches."""
    directory = tmp_path_factory.mktemp("history")
    with LocalCoordinator(valkey) as coordinator:
        stopping = threading.Event()
        threads: list[threading.Thread] = []

        def client(job: JobPlan, name: str) -> Client:
            recorder = Recorder(directory, name)
            return Client(job, RecordedTransport([coordinator.url], {}, recorder, random.Random(1)))

        for job in (DIRECT, BATCHES):
            assert client(job, f"{job.job}-setup").create({}, job.direct)
            for name in job.reporters:
                threads.append(Reporter(name, client(job, name), 0.0, stopping, random.Random(name)))
            threads.append(Reader(f"{job.job}-reader", client(job, f"{job.job}-reader"), stopping, random.Random(2)))
        for thread in threads:
            thread.start()
        history = History(directory)
        _write_batches(directory, coordinator.url, tmp_path_factory.mktemp("checkpoint"))
        until(
            lambda: len(history.read()) >= 0 and len(history.of("direct")) >= CALLS, "the clients have made their calls"
        )
        stopping.set()
        for thread in threads:
            thread.join()
        counted = coordinator.job(job="batches").status()["rows"]
        read = client(BATCHES, "final").call("GET", "/frames?limit=1000")
        assert read is not None
        frames = json.loads(read.body)["frames"]
    return Recorded(directory, counted, frames)


def _write_batches(directory: Path, url: str, checkpoint: Path) -> None:
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir()
    (checkpoint / "metadata").write_text('{"id": "checkpoint"}')
    settings = Settings(
        "q-1", "batches", "q", ["HNL", "ORD"], BATCHES.config, [url], str(directory), str(checkpoint), 0.0, 5
    )
    settings = replace(settings, has_windows=True)
    Writer(settings).run(BATCH_COUNT)


@pytest.fixture
def calls(recorded: Recorded, request: pytest.FixtureRequest) -> Sequence[Call]:
    """Return a fresh copy of the calls of one job."""
    history = History(recorded.directory)
    history.read()
    return history.of(request.param)


@pytest.fixture
def frames(recorded: Recorded) -> Sequence[dict[str, Any]]:
    """Return a fresh copy of the frames of the job with batches."""
    return deepcopy(recorded.frames)


direct = pytest.mark.parametrize("calls", ["direct"], indirect=True)
batches = pytest.mark.parametrize("calls", ["batches"], indirect=True)


def _all(job: JobPlan, calls: Sequence[Call], losses: Losses = NO_LOSS) -> Iterator[Violation]:
    return checks.check_all(job, calls, losses)


def _guarantees(found: Iterator[Violation]) -> set[str]:
    return {violation.guarantee for violation in found}


def _late(calls: Sequence[Call], is_chosen: Callable[[Call], bool]) -> Call:
    """Return a call from the last third of those that are chosen and have an answer with a watermark."""
    chosen = [call for call in checks.answers(calls) if is_chosen(call) and call.answer["watermark"] is not None]
    return chosen[2 * len(chosen) // 3]


@direct
def test_a_true_history_without_batches_has_no_violation(calls: Sequence[Call]) -> None:
    assert not list(_all(DIRECT, calls))
    verdict = check_model(DIRECT, calls, NO_LOSS)
    assert not verdict.violations
    assert verdict.undecided == 0 and verdict.judged >= CALLS // 2


@batches
def test_a_true_history_with_batches_has_no_violation(calls: Sequence[Call], recorded: Recorded) -> None:
    assert not list(_all(BATCHES, calls))
    assert len([call for call in calls if call.kind == "commit"]) == BATCH_COUNT
    assert not list(check_rows(calls, NO_LOSS, recorded.counted, float("inf")))


@direct
@pytest.mark.parametrize("by_ms", [-1, 1])
def test_the_model_finds_an_answer_that_is_wrong_by_a_millisecond(calls: Sequence[Call], by_ms: int) -> None:
    falsified = _late(calls, lambda call: call.kind == "report")
    falsified.answer["watermark"] += by_ms
    verdict = check_model(DIRECT, calls, NO_LOSS)
    [violation] = verdict.violations
    assert falsified in violation.calls


@direct
def test_the_model_finds_an_acknowledged_report_that_had_no_effect(calls: Sequence[Call]) -> None:
    """Every answer is shown as if one substream had stayed where it was."""
    chosen = _late(calls, lambda call: call.kind == "report" and call.client == "r1")
    frozen = chosen.answer["watermark"]
    for call in checks.answers(calls):
        if call.sent > chosen.sent and call.answer["watermark"] is not None:
            call.answer["watermark"] = call.answer["coalesced_watermark"] = frozen
    assert check_model(DIRECT, calls, NO_LOSS).violations


@direct
def test_an_operation_without_an_answer_may_have_been_performed(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.kind == "report" and call.client == "r1" and call.sent > calls[len(calls) // 2].sent:
            call.received, call.status, call.answer = float("inf"), None, {}
    verdict = check_model(DIRECT, calls, NO_LOSS)
    assert not verdict.violations and verdict.undecided == 0


@direct
def test_a_watermark_that_went_back_is_found(calls: Sequence[Call]) -> None:
    falsified = _late(calls, lambda call: call.kind == "watermark")
    falsified.answer["watermark"] -= 60_000
    assert "monotone" in _guarantees(checks.check_monotone(calls, NO_LOSS))
    lost = Losses([Loss(falsified.sent - 1e-6, falsified.received + 1e-6, float("inf"))])
    assert not list(checks.check_monotone(calls, lost)), "a flush excuses this answer"


@direct
def test_an_answer_below_its_token_is_found(calls: Sequence[Call]) -> None:
    falsified = _late(calls, lambda call: call.claim is not None)
    assert falsified.claim is not None
    falsified.answer["watermark"] = falsified.claim[1] - 1
    assert [violation.calls for violation in checks.check_tokens(calls)] == [(falsified,)]


@direct
def test_a_watermark_above_the_slowest_substream_is_found(calls: Sequence[Call]) -> None:
    falsified = _late(calls, lambda call: call.kind == "watermark")
    falsified.answer["watermark"] += 60_000
    assert [violation.calls for violation in checks.check_safe(DIRECT, calls)] == [(falsified,)]


@direct
def test_a_lost_report_is_found(calls: Sequence[Call]) -> None:
    read = [call for call in calls if call.kind == "substreams" and call.succeeded][-1]
    row = next(row for row in read.answer["substreams"] if row["substream"] == "c")
    row["max_event_time"] -= 60_000
    assert {violation.calls[1] for violation in checks.check_durable(calls, NO_LOSS)} == {read}


@batches
def test_a_watermark_above_an_open_batch_is_found(calls: Sequence[Call]) -> None:
    begun = [call for call in calls if call.kind == "begin"][BATCH_COUNT // 2]
    staged = next(call for call in calls if call.kind == "stage" and call.batch == begun.batch)
    staged.answer["watermark"] = begun.answer["pinned_watermark"] + 1
    assert [violation.calls for violation in checks.check_committed(calls, NO_LOSS)] == [(begun, staged)]


@batches
def test_a_written_watermark_above_the_windows_is_found(calls: Sequence[Call]) -> None:
    held = [call for call in calls if call.kind == "commit" and call.answer["written_watermark"] is not None][-1]
    assert held.answer["written_watermark"] < held.answer["watermark"], "its windows are not yet written"
    held.answer["written_watermark"] = held.answer["watermark"]
    assert [violation.calls[1] for violation in checks.check_written(calls, NO_LOSS)] == [held]


@batches
def test_a_second_pinned_watermark_is_found(calls: Sequence[Call]) -> None:
    begun = [call for call in calls if call.kind == "begin"][BATCH_COUNT // 2]
    replay = Call("q-2", "begin", begun.job, begun.received + 1e-6, {"run_id": "other"}, begun.query, begun.batch)
    replay.received, replay.status = begun.received + 2e-6, 200
    replay.answer = begun.answer | {"pinned_watermark": begun.answer["pinned_watermark"] + 1}
    assert "replay-exact" in _guarantees(checks.check_replay([*calls, replay], NO_LOSS))


@batches
def test_a_lost_commit_is_found(calls: Sequence[Call]) -> None:
    begun = [call for call in calls if call.kind == "begin"][-1]
    begun.answer["previous_batch_id"] -= 1
    assert "durable" in _guarantees(checks.check_durable(calls, NO_LOSS))
    assert begun.batch is not None
    lost = Losses([Loss(begun.sent - 2e-6, begun.sent - 1e-6, float("inf"))])
    assert not list(checks.check_durable(calls, lost)), "a flush excuses the lost commit"


@batches
@pytest.mark.parametrize("by", [-1, 1])
def test_a_row_that_counts_twice_or_never_is_found(calls: Sequence[Call], recorded: Recorded, by: int) -> None:
    counted = dict.fromkeys(CLASSES, 0) | recorded.counted
    counted["on_time"] += by
    assert _guarantees(check_rows(calls, NO_LOSS, counted, float("inf"))) == {"idempotent"}


def _finished(calls: Sequence[Call]) -> tuple[Call, dict[str, Any]]:
    """Return the last read of frames, and its last finished frame."""
    read = [call for call in calls if call.kind == "frames" and call.succeeded][-1]
    return read, next(frame for frame in read.answer["frames"] if frame["state"] != "open")


@batches
def test_a_frame_that_is_finished_early_is_found(calls: Sequence[Call]) -> None:
    assert not list(check_frames(calls, NO_LOSS))
    read, frame = _finished(calls)
    read.answer["written_watermark"] = frame["end"] - 1
    assert any(violation.calls == (read,) for violation in check_frames(calls, NO_LOSS))


@batches
def test_a_generation_with_two_contents_is_found(calls: Sequence[Call]) -> None:
    read, frame = _finished(calls)
    other = deepcopy(read)
    other.sent, other.received = read.received + 1, read.received + 2
    of_frame = next(each for each in other.answer["frames"] if each["start"] == frame["start"])
    of_frame["generations"][0]["rows"]["on_time"] += 1
    of_frame["rows"]["on_time"] += 1
    assert [violation.calls for violation in check_frames([*calls, other], NO_LOSS)] == [(read, other)]
    lost = Losses([Loss(read.received + 0.1, read.received + 0.2, 0)])
    assert not list(check_frames([*calls, other], lost)), "the store may have lost the first one"


@batches
def test_an_inexact_version_of_a_table_is_found(calls: Sequence[Call]) -> None:
    """A double rounds the versions."""
    read, frame = _finished(calls)
    (output,) = frame["generations"][0]["outputs"]
    output["version"] = str(int(float(output["version"])))
    assert any(read in violation.calls for violation in check_frames(calls, NO_LOSS))


@batches
def test_a_frame_that_is_open_again_is_found(calls: Sequence[Call]) -> None:
    read, frame = _finished(calls)
    other = deepcopy(read)
    other.sent, other.received = read.received + 1, read.received + 2
    of_frame = next(each for each in other.answer["frames"] if each["start"] == frame["start"])
    of_frame |= {"state": "open", "generation": None, "generations": []}
    assert [violation.calls for violation in check_frames([*calls, other], NO_LOSS)] == [(read, other)]


@batches
@pytest.mark.parametrize("by", [-1, 1])
def test_a_row_that_is_in_a_wrong_frame_is_found(
    calls: Sequence[Call], frames: Sequence[dict[str, Any]], by: int
) -> None:
    assert not list(check_frame_rows(calls, NO_LOSS, frames, float("inf")))
    counted = [frame for frame in frames if frame["rows"]["on_time"]]
    assert len(counted) >= 2
    counted[-1]["rows"]["on_time"] += by
    assert _guarantees(check_frame_rows(calls, NO_LOSS, frames, float("inf"))) == {"frames"}


def test_an_event_that_is_told_twice_is_found() -> None:
    first = {"start": 0, "end": 2000, "count": 1, "generation": 1, "state": "complete"}
    second = first | {"generation": 2, "reason": "rows"}
    assert not list(check_events([first, second]))
    assert list(check_events([first, first]))
    assert list(check_events([second, first]))


def test_a_killed_client_leaves_a_call_without_an_answer(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "client")
    recorder.answered(recorder.sent("GET", "/v1/jobs/j", None), 200, json.dumps({"watermark": 1}).encode())
    recorder.sent("POST", "/v1/jobs/j:report", {"substreams": ["a"], "max_event_times": [7]})
    history = History(tmp_path)
    assert [call.answer["watermark"] for call in history.read()] == [1]
    [status, report] = history.of("j")
    assert status.succeeded and not report.succeeded and report.is_uncertain
    assert report.event_times() == {"a": 7}
