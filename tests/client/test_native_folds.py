"""What is folded of a native stream, and what becomes of folds that a run has left: against a real coordinator."""

import json
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
from tidegate_spark import InvalidUsage, Job, JobDeleted, limiting_lag
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import HIGHEST
from tidegate_spark.native import finished, folding, source
from tidegate_spark.native.finished import CheckResult, FinishedBatches
from tidegate_spark.native.folding import FOLDS, Folding, PartitionFold, documents_of
from tidegate_spark.native.source import NativeInput, NativeReader
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.windows import markers

START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
HOURS = START_MS // 3_600_000
DAY_MS = 86_400_000


def folded(frame: Frame | None, watermark_ms: int, *rows: tuple[str, float | None], skew_ms: int | None = 0) -> Fold:
    """The fold of rows of which the first is planned at START; a batch of Arrow for each."""
    latest = HIGHEST if skew_ms is None else START_MS + skew_ms
    found = PartitionFold(Folding("i", "c", "q", frame, 1, True), "folds/0.run.0", START_MS, watermark_ms, latest)
    schema = pa.schema([("key_0", pa.string()), ("time", pa.timestamp("us", "UTC"))])
    for key, second in rows:
        at = None if second is None else START + timedelta(seconds=second)
        found.add(pa.RecordBatch.from_pydict({"key_0": [key], "time": [at]}, schema=schema))
    return found.fold()


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 100])
def test_a_fold_says_what_spark_does(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark compares microseconds; what it has at its watermark is late."""
    monkeypatch.setattr(folding, "ROWS_AT_A_TIME", rows_at_a_time)
    rows = [("a", -1.0), ("a", -0.000001), ("b", -1.000001), ("a", None), ("b", 0.0005), ("b", 0.0015), ("c", None)]
    fold = folded(None, START_MS - 1000, *rows)
    assert fold == Fold(
        "row: event_time <= Spark's watermark",
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
    """Of ten seconds, every five, from the third second on: the watermark at 0 has closed the one that ends at -2."""
    fold = folded(Frame(10_000, 5_000, 3_000), START_MS, ("a", -2.000001), ("a", -2.0), ("a", 0.0))
    assert (fold.rule, fold.late, fold.max_event_time) == ("window: end <= Spark's watermark", [1], [START_MS])


def test_without_a_limit_no_event_time_is_too_far_ahead() -> None:
    far = (datetime(9999, 1, 1, tzinfo=UTC) - START).total_seconds()
    assert folded(None, 0, ("a", far)).future == [1]
    fold = folded(None, 0, ("a", far), ("a", -1.0), skew_ms=None)
    assert (fold.future, fold.max_event_time) == ([0], [START_MS + int(far * 1000)])


def test_folds_of_partitions_are_put_together() -> None:
    one = folded(None, 0, ("a", -1.0), ("b", None))
    other = folded(None, START_MS, ("b", 1.0), ("b", -1.0), ("c", -2.0))
    both = Fold.merge([one, other])
    assert both.max_event_times() == {"a": START_MS - 1000, "b": START_MS - 1000, "c": START_MS - 2000}
    counts = {name: (rows, late) for name, rows, late in zip(both.substream, both.rows, both.late, strict=True)}
    assert counts == {"a": (1, 0), "b": (3, 1), "c": (1, 1)}
    assert (both.count("null_event_time"), both.count("future"), both.count("on_time")) == (1, 1, 1)
    assert Fold.merge([one]) == one


class Left:
    """A checkpoint as a run of a native query has left it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "commits").mkdir(parents=True)
        (directory / "metadata").write_text('{"id": "checkpoint"}')
        self.documents = documents_of(str(directory), "q")

    def fold(self, batch: int, run: str, partition: int, max_event_time: int, rows: int = 1) -> None:
        """By a task."""
        fold = Fold("row", ["a"], [max_event_time], [rows], [0], [0], [0], [0])
        document: dict[str, Any] = {"planned_ms": START_MS, "watermark_ms": 0, "fold": fold.document()}
        self.documents.write(f"{FOLDS}/{batch}.{run}.{partition}", document)

    def commit(self, batch: int) -> None:
        """By Spark."""
        (self.directory / "commits" / str(batch)).write_text("v1\n{}")

    def plan(self, batch: int, *offsets: str) -> None:
        """By Spark, with an offset for each source."""
        (self.directory / "offsets").mkdir(exist_ok=True)
        lines = ["v1", json.dumps({"batchTimestampMs": START_MS}), *offsets]
        (self.directory / "offsets" / str(batch)).write_text("\n".join(lines))

    def next_run(self, job: Job) -> FinishedBatches:
        checkpoint = documents_of(str(self.directory), "q")
        session = DriverSession(QuerySettings(job.connection, "q"), checkpoint)
        session.run(session.protocol.start_native())
        return FinishedBatches(session, by_row=True, retained=10)


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path / "checkpoint")


def known_of(job: Job) -> tuple[int | None, int]:
    status = job.status()
    return status["max_event_time"], status["rows"]["on_time"]


def test_what_was_finished_and_not_reported_is_reported_by_the_next_run(job: Job, left: Left) -> None:
    """Spark had committed a batch, and the driver died; another was not committed, and will be run again."""
    left.fold(0, "first", 0, 1000)
    left.commit(0)
    left.fold(1, "first", 0, 5000)
    run = left.next_run(job)
    assert run.report(1) == CheckResult(True, True, False, True)
    assert known_of(job) == (1000, 1)
    assert run.report(1) == CheckResult(False, False, True, True)
    left.fold(1, "second", 0, 4000)
    left.fold(1, "second", 1, 3000)
    left.commit(1)
    assert run.report(1) == CheckResult(True, True, False, True)
    assert known_of(job) == (4000, 3), "the run that finished it, with what all its tasks saw"
    assert left.documents.documents(FOLDS) == {}
    left.commit(2)
    assert run.report(1) == CheckResult(True, False, False, True)


def test_what_is_in_the_backlog_is_not_reported_twice(job: Job, left: Left) -> None:
    """A run reported a batch, and died before it removed the fold."""
    left.fold(0, "first", 0, 1000)
    left.commit(0)
    left.next_run(job).report(1)
    left.fold(0, "first", 0, 1000)
    left.next_run(job).report(1)
    assert known_of(job) == (1000, 1)
    assert left.documents.documents(FOLDS) == {}


def test_what_is_refused_is_reported_when_it_is_accepted(job: Job, left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was complete, and is opened again."""
    monkeypatch.setattr(finished, "RETRY_AFTER_S", 0.0)
    run = left.next_run(job)
    run.report(1)
    job.complete()
    left.fold(0, "first", 0, 1000)
    left.commit(0)
    for _ in range(2):
        with pytest.raises(Exception, match="job_complete"):
            run.report(1)
    operate(job, "POST", ":reopen", {"reason": "not yet"})
    assert run.report(1) == CheckResult(False, False, False, True)
    assert known_of(job) == (1000, 1)
    assert run.report(1) == CheckResult(False, False, True, True)


def following(job: Job, left: Left, monkeypatch: pytest.MonkeyPatch) -> NativeReader:
    """Return the reader of a query that looks at everything with each call."""
    monkeypatch.setattr(markers, "POLL_EVERY_S", 0.0)
    monkeypatch.setattr(source, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(source, "PAUSE_FACTOR", 0)
    native = NativeInput(
        "input",
        job.connection.url,
        job.connection.job,
        job.connection.config,
        "q",
        str(left.directory),
        (),
        None,
        None,
        100,
        asdict(QueryChoices.of("t", "k")),
        False,
    )
    return NativeReader(native, None, StructType([StructField("t", TimestampType())]))


def test_a_refusal_is_not_followed_by_an_all_clear(
    job: Job, left: Left, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was refused is still to be taken, though nothing is sent for a while."""
    reader = following(job, left, monkeypatch)
    reader.latestOffset()
    job.complete()
    left.fold(0, "first", 0, 1000)
    left.commit(0)
    for _ in range(3):
        reader.latestOffset()
    said = [record.getMessage() for record in caplog.records if "finished batches" in record.getMessage()]
    assert len(said) == 1 and "the coordinator refuses finished batches" in said[0] and "job_complete" in said[0]
    monkeypatch.setattr(finished, "RETRY_AFTER_S", 0.0)
    operate(job, "POST", ":reopen", {"reason": "not yet"})
    left.commit(1)
    reader.latestOffset()
    assert "the coordinator accepts finished batches again" in caplog.text
    assert known_of(job) == (1000, 1)


@pytest.mark.parametrize("finishes", [True, False], ids=["a batch", "nothing"])
def test_a_deleted_job_fails_the_query(job: Job, left: Left, monkeypatch: pytest.MonkeyPatch, finishes: bool) -> None:
    """With its next trigger, whether there is anything to report or not; a query that went on would lose its rows."""
    reader = following(job, left, monkeypatch)
    for _ in range(3):
        reader.latestOffset()
    operate(job, "DELETE", "")
    if finishes:
        left.fold(0, "first", 0, 1000)
        left.commit(0)
    with pytest.raises(JobDeleted):  # heartbeats come now and then
        until(lambda: reader.latestOffset() is None, "the query fails", 30)
    again = following(job, left, monkeypatch)
    again.latestOffset()
    assert known_of(job) == ((1000, 1) if finishes else (None, 0))


def test_a_batch_whose_rows_no_task_has_read_is_named(
    job: Job, left: Left, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unread batch reports nothing and the watermark stops, so the client logs one warning per run."""
    reader = following(job, left, monkeypatch)
    reader.latestOffset()
    files = ["-", '{"logOffset":0}', '{"logOffset":1}', '{"logOffset":1}', '{"logOffset":2}', '{"logOffset":3}']
    for batch, offset in enumerate(files):
        left.plan(batch, json.dumps({"watermark": batch}), offset)
        left.commit(batch)
        reader.latestOffset()
        assert ("no task has read a row" in caplog.text) == (batch >= 4), f"batch {batch}"
    assert caplog.text.count("q 4: no task has read a row") == caplog.text.count("no task has read a row") == 1


def test_a_run_that_reads_rows_is_not_warned_of_empty_batches(
    job: Job, left: Left, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files may be empty, and a filter may leave no row of a batch."""
    reader = following(job, left, monkeypatch)
    reader.latestOffset()
    for batch in range(5):
        left.plan(batch, json.dumps({"watermark": batch}), json.dumps({"logOffset": batch}))
        if batch == 0:
            left.fold(batch, "first", 0, 1000)
        left.commit(batch)
        reader.latestOffset()
    assert "no task has read a row" not in caplog.text


def test_another_checkpoint_than_that_of_the_query_is_refused(
    job: Job, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first batch, and whatever that does."""
    (left.directory / "metadata").unlink()
    with pytest.raises(InvalidUsage, match="but the query uses another checkpoint"):
        following(job, left, monkeypatch).latestOffset()


def test_what_spark_has_finished_and_forgotten_is_found(job: Job, left: Left) -> None:
    """It keeps the commits of its last batches only, and many may have passed while the coordinator kept us waiting."""
    run = left.next_run(job)
    run.report(1)
    for batch in range(3):
        left.fold(batch, "first", 0, 1000 * (batch + 1))
    left.commit(2)
    assert run.report(3) == CheckResult(False, False, True, True), "a few calls cannot have passed by so many batches"
    assert run.report(1000) == CheckResult(True, True, False, True)
    assert known_of(job) == (3000, 3)
    assert run.report(1000) == CheckResult(False, False, False, True), "not certain without another listing"


@pytest.mark.slow
def test_an_account_that_is_too_large_is_taken_as_a_whole(own: LocalCoordinator, left: Left) -> None:
    """Two tasks have each seen as many substreams as go into one; Spark has committed the batch."""
    job = own.job(config=limiting_lag(LAG))
    rows = 60_000
    for partition in range(2):
        names = [f"{partition}-{number}" for number in range(rows)]
        fold = Fold("row", names, [1000] * rows, [2] * rows, [0] * rows, [1] * rows, [0] * rows, [0] * rows)
        document: dict[str, Any] = {"planned_ms": START_MS, "watermark_ms": 0, "fold": fold.document()}
        left.documents.write(f"{FOLDS}/0.first.{partition}", document)
    left.commit(0)
    left.next_run(job).report(1)
    status = job.status()
    assert (status["rows"]["on_time"], status["rows"]["late"]) == (2 * rows, 2 * rows)
    assert status["substreams"]["active"] == 2 * rows


def test_inputs_of_one_query_do_not_share_their_documents(tmp_path: Path) -> None:
    one, other = (documents_of(str(tmp_path), name) for name in ("one", "other"))
    one.write("kind/1", {"of": "one"})
    assert (other.read("kind/1"), Checkpoint(str(tmp_path)).read("kind/1")) == (None, None)
    assert one.documents("kind").keys() == {"1"}
