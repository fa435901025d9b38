"""The folds of native streams, and the reports of finished batches to a coordinator."""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from tests.support.api import operate
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tests.support.waiting import until
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark import InvalidUsage, Job, JobDeleted, Refused, limiting_lag, reported, target_completeness
from tidegate_spark.config import JobConfig, longest_lag_ms
from tidegate_spark.frame import Frame
from tidegate_spark.native import finished, folding, source
from tidegate_spark.native.finished import CheckResult, FinishedBatches
from tidegate_spark.native.folding import FOLDS, Folding, PartitionFold, documents_of
from tidegate_spark.native.source import NativeInput, NativeReader
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.fold import HIGHEST, Fold
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.testing import CoordinatorProcess
from tidegate_spark.windows import markers

START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
HOURS = START_MS // 3_600_000
DAY_MS = 86_400_000


def fold_of(
    frame: Frame | None, watermark_ms: int, *rows: tuple[str, float | None], future_skew_ms: int | None = 0
) -> Fold:
    """Return the fold of rows, each in its own Arrow batch, of a Spark batch planned at START."""
    latest = HIGHEST if future_skew_ms is None else START_MS + future_skew_ms
    found = PartitionFold(Folding("i", "c", "q", frame, 1, True), "folds/0.run.0", START_MS, watermark_ms, latest)
    schema = pa.schema([("key_0", pa.string()), ("time", pa.timestamp("us", "UTC"))])
    for key, second in rows:
        at = None if second is None else START + timedelta(seconds=second)
        found.add(pa.RecordBatch.from_pydict({"key_0": [key], "time": [at]}, schema=schema))
    return found.fold()


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 100])
def test_a_fold_classifies_rows_as_spark_does(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold classifies rows as Spark does: by microseconds, and late at or below Spark's watermark."""
    monkeypatch.setattr(folding, "ROWS_AT_A_TIME", rows_at_a_time)
    rows = [("a", -1.0), ("a", -0.000001), ("b", -1.000001), ("a", None), ("b", 0.0005), ("b", 0.0015), ("c", None)]
    fold = fold_of(None, START_MS - 1000, *rows)
    assert fold == Fold(
        substream=["a", "b", "c"],
        max_event_time=[START_MS - 1, START_MS, None],
        rows=[3, 3, 1],
        updated=[0, 0, 0],
        late=[1, 1, 0],
        null_event_time=[1, 0, 1],
        future=[0, 1, 0],
        hours=[[[HOURS - 1, 2, 0, 1]], [[HOURS - 1, 1, 0, 1], [HOURS, 1, 0, 0]], []],
    )


def test_by_windows_a_row_is_late_when_its_first_window_is_closed() -> None:
    """With windows of 10 s, a slide of 5 s and an offset of 3 s, a watermark of 0 closes the window up to -2 s."""
    fold = fold_of(Frame(10_000, 5_000, 3_000), START_MS, ("a", -2.000001), ("a", -2.0), ("a", 0.0))
    assert (fold.late, fold.max_event_time) == ([1], [START_MS])


def test_without_a_limit_no_event_time_is_too_far_ahead() -> None:
    far = (datetime(9999, 1, 1, tzinfo=UTC) - START).total_seconds()
    assert fold_of(None, 0, ("a", far)).future == [1]
    fold = fold_of(None, 0, ("a", far), ("a", -1.0), future_skew_ms=None)
    assert (fold.future, fold.max_event_time) == ([0], [START_MS + int(far * 1000)])


def test_folds_of_partitions_are_merged() -> None:
    one = fold_of(None, 0, ("a", -1.0), ("b", None))
    other = fold_of(None, START_MS, ("b", 1.0), ("b", -1.0), ("c", -2.0))
    both = Fold.merge([one, other])
    assert both.max_event_times() == {"a": START_MS - 1000, "b": START_MS - 1000, "c": START_MS - 2000}
    counts = {name: (rows, late) for name, rows, late in zip(both.substream, both.rows, both.late, strict=True)}
    assert counts == {"a": (1, 0), "b": (3, 1), "c": (1, 1)}
    assert (both.count("null_event_time"), both.count("future"), both.count("on_time")) == (1, 1, 1)
    assert Fold.merge([one]) == one


class EndedRun:
    """The checkpoint of a native query after its run has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "commits").mkdir(parents=True)
        (directory / "metadata").write_text('{"id": "checkpoint"}')
        self.documents = documents_of(str(directory), "q")

    def fold(self, batch: int, run: str, partition: int, max_event_time: int, rows: int = 1) -> None:
        """Write a fold, as a task does."""
        fold = Fold(["a"], [max_event_time], [rows], [0], [0], [0], [0])
        document: dict[str, Any] = {"planned_ms": START_MS, "watermark_ms": 0, "fold": asdict(fold)}
        self.documents.write(f"{FOLDS}/{batch}.{run}.{partition}", document)

    def commit(self, batch: int) -> None:
        """Commit a batch, as Spark does."""
        (self.directory / "commits" / str(batch)).write_text("v1\n{}")

    def plan(self, batch: int, *offsets: str) -> None:
        """Plan a batch, as Spark does, with one offset per source."""
        (self.directory / "offsets").mkdir(exist_ok=True)
        lines = ["v1", json.dumps({"batchTimestampMs": START_MS}), *offsets]
        (self.directory / "offsets" / str(batch)).write_text("\n".join(lines))

    def next_run(self, job: Job) -> FinishedBatches:
        checkpoint = documents_of(str(self.directory), "q")
        session = DriverSession(QuerySettings(job.connection, "q"), checkpoint)
        session.run(session.protocol.start(adopt=False))
        return FinishedBatches(session, by_row=True, retained=10, has_all_input=True)


@pytest.fixture
def ended_run(tmp_path: Path) -> EndedRun:
    return EndedRun(tmp_path / "checkpoint")


def reported_state(job: Job) -> tuple[int | None, int]:
    status = job.status()
    return status["max_event_time"], status["rows"]["on_time"]


def test_the_next_run_reports_finished_batches(job: Job, ended_run: EndedRun) -> None:
    """The next run reports the batch that Spark committed before the driver crashed, not the uncommitted one."""
    ended_run.fold(0, "first", 0, 1000)
    ended_run.commit(0)
    ended_run.fold(1, "first", 0, 5000)
    run = ended_run.next_run(job)
    assert run.report(1) == CheckResult(True, True, False, True)
    assert reported_state(job) == (1000, 1)
    assert run.report(1) == CheckResult(False, False, True, True)
    ended_run.fold(1, "second", 0, 4000)
    ended_run.fold(1, "second", 1, 3000)
    ended_run.commit(1)
    assert run.report(1) == CheckResult(True, True, False, True)
    assert reported_state(job) == (4000, 3), "the report must have all folds of the second run and none of the first"
    assert ended_run.documents.documents(FOLDS) == {}
    ended_run.commit(2)
    assert run.report(1) == CheckResult(True, False, False, True)


def test_a_finished_batch_is_not_reported_twice(job: Job, ended_run: EndedRun) -> None:
    """The first run reported a batch and crashed before it removed the fold. The next run does not report it again."""
    ended_run.fold(0, "first", 0, 1000)
    ended_run.commit(0)
    ended_run.next_run(job).report(1)
    ended_run.fold(0, "first", 0, 1000)
    ended_run.next_run(job).report(1)
    assert reported_state(job) == (1000, 1)
    assert ended_run.documents.documents(FOLDS) == {}


def test_a_refused_batch_is_reported_later(job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that a complete job refused is reported after the job is reopened."""
    monkeypatch.setattr(finished, "RETRY_AFTER_S", 0.0)
    run = ended_run.next_run(job)
    run.report(1)
    job.complete()
    ended_run.fold(0, "first", 0, 1000)
    ended_run.commit(0)
    for _ in range(2):
        with pytest.raises(Exception, match="job_complete"):
            run.report(1)
    operate(job, "POST", ":reopen", {"reason": "not yet"})
    assert run.report(1) == CheckResult(False, False, False, True)
    assert reported_state(job) == (1000, 1)
    assert run.report(1) == CheckResult(False, False, True, True)


def reader_of(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, delay_ms: int = 0, checks_delay: bool = True
) -> NativeReader:
    """Return the reader of a query that checks for finished batches and sends a heartbeat at each call."""
    monkeypatch.setattr(markers, "POLL_EVERY_S", 0.0)
    monkeypatch.setattr(source, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(source, "PAUSE_FACTOR", 0)
    native = NativeInput(
        input="input",
        url=job.connection.url,
        job=job.connection.job,
        config=job.connection.config,
        query="q",
        checkpoint=str(ended_run.directory),
        declared=(),
        complete_batches=False,
        has_all_input=True,
        is_idle_without_input=True,
        frame=None,
        delay_ms=delay_ms,
        checks_delay=checks_delay,
        retained=100,
        choices=asdict(QueryChoices.of("t", "k")),
        replaces_substreams=False,
    )
    return NativeReader(native, job.connection.key, StructType([StructField("t", TimestampType())]))


def test_a_refusal_is_logged_until_batches_are_accepted(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal is logged once. A call that sends nothing does not log that the coordinator accepts batches again."""
    reader = reader_of(job, ended_run, monkeypatch)
    reader.latestOffset()
    job.complete()
    ended_run.fold(0, "first", 0, 1000)
    ended_run.commit(0)
    for _ in range(3):
        reader.latestOffset()
    messages = [record.getMessage() for record in caplog.records if "finished batches" in record.getMessage()]
    assert (
        len(messages) == 1
        and "the coordinator refuses finished batches" in messages[0]
        and "job_complete" in messages[0]
    )
    monkeypatch.setattr(finished, "RETRY_AFTER_S", 0.0)
    operate(job, "POST", ":reopen", {"reason": "not yet"})
    ended_run.commit(1)
    reader.latestOffset()
    assert "the coordinator accepts finished batches again" in caplog.text
    assert reported_state(job) == (1000, 1)


def test_a_key_that_may_not_report_fails_the_query(
    ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A key of the role `operate` may create the job. If the query went on, a run could end and report nothing."""
    file = tmp_path / "keys.json"
    keys = {role: keyring.create(file, f"key-{role.value}", role, "") for role in (Role.OPERATE, Role.REPORT)}
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file)) as process:
        reader = reader_of(
            process.job(job="j", key=keys[Role.OPERATE], config=limiting_lag(LAG)), ended_run, monkeypatch
        )
        reader.prepareForTriggerAvailableNow()
        reader.latestOffset()
        ended_run.fold(0, "first", 0, 1000)
        ended_run.commit(0)
        with pytest.raises(Refused, match=r"\[role_not_allowed, 403\]"):
            reader.latestOffset()
        ours = process.job(job="j", key=keys[Role.REPORT], config=limiting_lag(LAG))
        reader_of(ours, ended_run, monkeypatch).latestOffset()
        assert reported_state(ours) == (1000, 1), "the next run must report the batch of the failed run"


@pytest.mark.parametrize("finishes", [True, False], ids=["a batch", "nothing"])
def test_a_deleted_job_fails_the_query(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    """The query fails whether it has batches to report or not. Otherwise its rows would never be reported."""
    reader = reader_of(job, ended_run, monkeypatch)
    for _ in range(3):
        reader.latestOffset()
    operate(job, "DELETE", "")
    if finishes:
        ended_run.fold(0, "first", 0, 1000)
        ended_run.commit(0)
    with pytest.raises(JobDeleted):  # heartbeats are sent at intervals
        until(lambda: reader.latestOffset() is None, "the query fails", 30)
    again = reader_of(job, ended_run, monkeypatch)
    again.latestOffset()
    assert reported_state(job) == ((1000, 1) if finishes else (None, 0))


def test_rows_that_contradict_the_clock_are_logged_once(
    job: Job, ended_run: EndedRun, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's own operators follow the watermark, so a wrong unit or a wrong clock has the same effect there."""
    run = ended_run.next_run(job)
    ahead_ms = int(1000 * time.time()) + DAY_MS // 2
    for batch, max_event_time in enumerate([1000, START_MS, ahead_ms, ahead_ms]):
        ended_run.fold(batch, "first", 0, max_event_time)
        ended_run.commit(batch)
        run.report(1)
        warned = [caplog.text.count(text) for text in ("in 1970, until 1970-01-01 00:00:01 UTC", "ahead of the clock:")]
        assert warned == [1, int(batch >= 2)], f"batch {batch}"


def test_an_unread_batch_is_logged(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unread batch reports nothing and the watermark stops, so the client logs one warning per run."""
    reader = reader_of(job, ended_run, monkeypatch)
    reader.latestOffset()
    files = ["-", '{"logOffset":0}', '{"logOffset":1}', '{"logOffset":1}', '{"logOffset":2}', '{"logOffset":3}']
    for batch, offset in enumerate(files):
        ended_run.plan(batch, json.dumps({"watermark": batch}), offset)
        ended_run.commit(batch)
        reader.latestOffset()
        assert ("no task has read a row" in caplog.text) == (batch >= 4), f"batch {batch}"
    assert caplog.text.count("q 4: no task has read a row") == caplog.text.count("no task has read a row") == 1


def test_empty_batches_after_a_row_are_not_logged(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty batches after a batch with rows are normal, so the client logs no warning."""
    reader = reader_of(job, ended_run, monkeypatch)
    reader.latestOffset()
    for batch in range(5):
        ended_run.plan(batch, json.dumps({"watermark": batch}), json.dumps({"logOffset": batch}))
        if batch == 0:
            ended_run.fold(batch, "first", 0, 1000)
        ended_run.commit(batch)
        reader.latestOffset()
    assert "no task has read a row" not in caplog.text


def test_another_checkpoint_than_that_of_the_query_is_refused(
    job: Job, ended_run: EndedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader refuses the checkpoint before the first batch."""
    (ended_run.directory / "metadata").unlink()
    with pytest.raises(InvalidUsage, match="but the query uses another checkpoint"):
        reader_of(job, ended_run, monkeypatch).latestOffset()


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (limiting_lag(LAG), 10_000),
        (limiting_lag(LAG, overrides={"a*": limiting_lag(2 * LAG)}), 20_000),
        (limiting_lag(LAG, overrides={"a*": reported()}), None),
        (target_completeness(0.99, cold_start=LAG, ceiling=3 * LAG), 30_000),
        (target_completeness(0.99, cold_start=LAG), None),
    ],
)
def test_the_longest_lag_includes_overrides(config: JobConfig, longest: int | None) -> None:
    """Keys of a substream with a longer lag would otherwise be forgotten while duplicates are on time."""
    assert longest_lag_ms(config) == longest


@pytest.mark.parametrize(
    ("operator", "delay_ms", "checks_delay", "refused"),
    [
        ("dedupeWithinWatermark", 9_999, True, True),
        ("dedupeWithinWatermark", 10_000, True, False),
        ("dedupeWithinWatermark", 0, False, False),
        ("dedupe", 0, True, False),
    ],
)
def test_keys_that_would_be_forgotten_too_early_are_refused(
    job: Job,
    ended_run: EndedRun,
    monkeypatch: pytest.MonkeyPatch,
    operator: str,
    delay_ms: int,
    checks_delay: bool,
    refused: bool,
) -> None:
    """The lag of the job is ten seconds. With a shorter delay, Spark would keep on-time duplicates."""
    reader = reader_of(job, ended_run, monkeypatch, delay_ms, checks_delay)
    reader.latestOffset()
    metadata = ended_run.directory / "state" / "0" / "_metadata" / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": operator}}))
    ended_run.commit(0)
    if refused:
        with pytest.raises(InvalidUsage, match=r"the job has a lag of 0:00:10.*Pass duplicates_within="):
            reader.latestOffset()
    else:
        reader.latestOffset()


def test_finished_batches_without_a_commit_are_found(job: Job, ended_run: EndedRun) -> None:
    """Spark keeps only its last commits. After many calls, the check lists them, because the next may be deleted."""
    run = ended_run.next_run(job)
    run.report(1)
    for batch in range(3):
        ended_run.fold(batch, "first", 0, 1000 * (batch + 1))
    ended_run.commit(2)
    assert run.report(3) == CheckResult(False, False, True, True), "after few calls, no commit can be deleted yet"
    assert run.report(1000) == CheckResult(True, True, False, True)
    assert reported_state(job) == (3000, 3)
    assert run.report(1000) == CheckResult(False, False, False, True), (
        "without another listing, inactivity is not certain"
    )


@pytest.mark.slow
def test_a_batch_with_too_many_substreams_for_one_report_is_reported(
    own: LocalCoordinator, ended_run: EndedRun
) -> None:
    """A committed batch whose two tasks each have the maximum number of substreams is reported completely."""
    job = own.job(config=limiting_lag(LAG))
    rows = 60_000
    for partition in range(2):
        names = [f"{partition}-{number}" for number in range(rows)]
        fold = Fold(names, [1000] * rows, [2] * rows, [0] * rows, [1] * rows, [0] * rows, [0] * rows)
        document: dict[str, Any] = {"planned_ms": START_MS, "watermark_ms": 0, "fold": asdict(fold)}
        ended_run.documents.write(f"{FOLDS}/0.first.{partition}", document)
    ended_run.commit(0)
    ended_run.next_run(job).report(1)
    status = job.status()
    assert (status["rows"]["on_time"], status["rows"]["late"]) == (2 * rows, 2 * rows)
    assert status["substreams"]["active"] == 2 * rows


def test_inputs_of_one_query_do_not_share_their_documents(tmp_path: Path) -> None:
    one, other = (documents_of(str(tmp_path), name) for name in ("one", "other"))
    one.write("kind/1", {"of": "one"})
    assert (other.read("kind/1"), Checkpoint(str(tmp_path)).read("kind/1")) == (None, None)
    assert one.documents("kind").keys() == {"1"}
