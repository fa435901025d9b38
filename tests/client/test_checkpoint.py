"""What the client reads from a checkpoint, and what it stores beside it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from tests.support.delete_first import DeleteFirst
from tests.support.drivers import on_files
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol import checkpoint as checkpoint_module
from tidegate_spark.protocol.checkpoint import FORMAT, Checkpoint, file_system, is_marker
from tidegate_spark.protocol.progress import Progress


def test_the_query_id_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    """The query id comes from the checkpoint's metadata, so it stays the same after a restart."""
    checkpoint = Checkpoint(str(tmp_path))
    assert not checkpoint.started()
    with pytest.raises(InvalidUsage, match="add the scheme: hdfs://"):
        _ = checkpoint.query_id
    (tmp_path / "metadata").write_text('{"id":"39a82bda-d3a8-4d2f-85b9-8fb9967c5951"}')
    assert checkpoint.started()
    assert checkpoint.query_id == "39a82bda-d3a8-4d2f-85b9-8fb9967c5951"


def test_planned_and_finished_batches_are_read(tmp_path: Path) -> None:
    """The checkpoint returns the planning time of a batch and the last finished batch. It ignores hidden files."""
    checkpoint = Checkpoint(str(tmp_path))
    assert (checkpoint.planned_ms(0), checkpoint.finished()) == (None, None)
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    (tmp_path / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000123}\n{"x":1}\n-')
    for name in ("9", "10", ".11.crc", ".11.tmp"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert (checkpoint.planned_ms(10), checkpoint.finished()) == (1_700_000_000_123, 10)


def test_documents_are_stored_by_batch(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    assert (checkpoint.read("kind/1"), checkpoint.batches("kind")) == (None, [])
    for batch in (10, 9):
        checkpoint.write(f"kind/{batch}", {"batch": batch})
    checkpoint.write("kind/9", {"batch": 9, "again": True})
    (tmp_path / "tidegate" / "kind" / ".11.partial").write_text('{"half')
    assert checkpoint.batches("kind") == [9, 10]
    assert Checkpoint(f"file:{tmp_path}").read("kind/9") == {"batch": 9, "again": True}
    checkpoint.delete("kind/9")
    checkpoint.delete("kind/9")
    assert checkpoint.batches("kind") == [10]


class Crash(Exception):
    """The process has crashed."""


def on_hdfs(
    location: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[str], None] = lambda _: None
) -> Checkpoint:
    """Return a checkpoint on a file system whose moves delete first, which calls ``step`` around each change."""
    files = fs.PyFileSystem(DeleteFirst(step))
    monkeypatch.setattr(checkpoint_module, "file_system", lambda path: (files, path))
    checkpoint = Checkpoint(str(location))
    assert checkpoint.started() is False  # determines the file system
    return checkpoint


def test_a_crash_while_a_document_is_replaced_on_hdfs_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at any step, in each of two attempts, leaves the document as it was before or after the write."""
    crashed = 0
    for first, second in itertools.product(range(10), repeat=2):
        location = tmp_path / f"{first}-{second}"
        on_hdfs(location, monkeypatch).write("backlog/7", {"version": 0})
        on_hdfs(location, monkeypatch).write("backlog/7", {"version": 1})
        versions = {1}
        for version, fatal in ((2, first), (3, second)):
            steps = itertools.count()

            def step(name: str, steps: Iterator[int] = steps, fatal: int = fatal) -> None:
                if next(steps) == fatal:
                    raise Crash(name)

            versions.add(version)
            try:
                on_hdfs(location, monkeypatch, step).write("backlog/7", {"version": version})
                versions = {version}
            except Crash:
                crashed += 1
            after = on_hdfs(location, monkeypatch)
            document = after.read("backlog/7")
            assert document is not None
            assert document["version"] in versions, (first, second)
            assert after.batches("backlog") == [7] == [*map(int, after.documents("backlog"))]
            versions = {document["version"]}
        on_hdfs(location, monkeypatch).write("backlog/7", {"version": 4})
        assert on_hdfs(location, monkeypatch).read("backlog/7") == {"version": 4}
    assert crashed > 100


def test_a_reader_on_hdfs_sees_a_document_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in another process sees the document before or after the write at each step, as on other systems."""
    seen: list[Any] = []
    reader = on_hdfs(tmp_path, monkeypatch)
    writer = on_hdfs(tmp_path, monkeypatch, lambda _: seen.append(reader.read("progress")))
    writer.write("progress", {"version": 0})
    seen.clear()
    for version in range(1, 4):
        writer.write("progress", {"version": version})
        assert {None if each is None else each["version"] for each in seen} == {version - 1, version}
        seen.clear()
    writer.write_table("state/1", pa.table({"a": [1]}))
    writer.write_table("state/1", pa.table({"a": [2]}))
    assert reader.read_table("state/1") == pa.table({"a": [2]})


def test_a_deleted_document_does_not_return_on_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous content is deleted first: otherwise a crash in between would bring an old document back."""
    seen: list[Any] = []
    reader = on_hdfs(tmp_path, monkeypatch)
    writer = on_hdfs(tmp_path, monkeypatch, lambda _: seen.append(reader.read("backlog/7")))
    for version in range(2):
        writer.write("backlog/7", {"version": version})
    seen.clear()
    writer.delete("backlog/7")
    writer.delete("backlog/7")
    assert [each for each in seen if each not in ({"version": 1}, None)] == []
    assert (reader.read("backlog/7"), reader.batches("backlog"), reader.documents("backlog")) == (None, [], {})


def test_a_document_of_a_newer_client_is_refused(tmp_path: Path) -> None:
    """An older client could misread the document, and classify rows by another watermark."""
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.write("progress", {"query": "q"})
    path = tmp_path / "tidegate" / "progress.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(
        InvalidUsage, match=f"progress.json .* has format {FORMAT + 1}, .* reads formats up to {FORMAT}"
    ):
        checkpoint.read("progress")
    path.write_text('{"query": "q"}')
    assert checkpoint.read("progress") == {"query": "q"}, "a document without a format has the first one"


@pytest.mark.parametrize("path", ["/data/x", "file:/data/x", "file:///data/x"])
def test_all_spellings_of_local_paths_are_accepted(path: str) -> None:
    """All spellings name the same directory, as in Spark."""
    assert file_system(path)[1] == "/data/x"


def test_an_unsupported_file_system_is_refused() -> None:
    """The error names a scheme that is supported."""
    with pytest.raises(InvalidUsage, match="s3a://"):
        file_system("ftp://host/x")


def test_progress_is_saved_and_loaded(tmp_path: Path) -> None:
    """Saved progress can be loaded. Before the first save, the progress is empty."""
    checkpoint = Checkpoint(str(tmp_path))
    progress = on_files(checkpoint, Progress.load("q", "j"))
    assert progress == Progress("q")
    assert progress.follow({"state_epoch": "e", "incarnation": 2})
    progress.commit(6, {"a": 5, "b": 1}, "2.1.x", True)
    progress.commit(7, {"a": 4, "b": 2}, "2.2.y", True)
    on_files(checkpoint, progress.save())
    assert on_files(checkpoint, Progress.load("q", "j")) == Progress("q", 7, "e", 2, {"a": 5, "b": 2}, "2.2.y")


def test_progress_under_another_name_has_no_batch(tmp_path: Path) -> None:
    """Under a new name the last batch is None, because the coordinator has no batch of that name."""
    checkpoint = Checkpoint(str(tmp_path))
    on_files(checkpoint, Progress("old", 7, "e", 2, {"a": 5}, "2.2.y").save())
    renamed = Progress("new", None, "e", 2, {"a": 5}, "2.2.y", renamed_from="old")
    assert on_files(checkpoint, Progress.load("new", "j")) == renamed


@pytest.mark.parametrize(("incarnation", "kept"), [(1, True), (2, True), (3, False)])
def test_only_a_lost_job_is_restored(incarnation: int, kept: bool) -> None:
    """A higher incarnation is the result of a reset or of a new job, so nothing is restored."""
    progress = Progress("q", 7, "e", 2, {"a": 5})
    assert progress.missing_in({"state_epoch": "e", "incarnation": 2}) == {}
    answer = {"state_epoch": "f", "incarnation": incarnation}
    assert progress.missing_in(answer) == ({"a": 5} if kept else {})
    assert progress.follow(answer)
    assert (progress.batch_id, progress.max_event_times) == ((7, {"a": 5}) if kept else (None, {}))
    assert not progress.follow(answer)
    assert progress.missing_in(answer) == {}


def test_max_event_times_are_reported_until_a_commit_applies_them() -> None:
    """The coordinator ignores the reports of a batch that it has committed before."""
    progress = Progress("q", 7, "e", 1, {"a": 5}, restoring=True)
    progress.commit(8, {}, None, False)
    assert progress.restoring
    progress.commit(9, {}, None, True)
    assert not progress.restoring


@pytest.mark.parametrize(
    ("previous", "was_open", "lost"),
    [(7, False, False), (7, True, True), (6, False, True), (6, True, True), (8, True, False), (None, False, True)],
)
def test_a_lost_commit_is_recognized_at_the_next_begin(previous: int | None, was_open: bool, lost: bool) -> None:
    """The commit of batch 7 was acknowledged."""
    assert Progress("q", 7, "e", 1, {}).is_lost_by(previous, was_open) == lost
    assert not Progress("q").is_lost_by(previous, was_open)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ('{"watermark": 5}', True),
        ('{"watermark": null, "run": "r"}', True),
        ('{"watermark":{"0":5}}', False),
        ('{"logOffset":3}', False),
        ("17", False),
        ("-", False),
    ],
)
def test_offsets_of_markers_are_recognized(offset: str, expected: bool) -> None:
    """Offsets of a Kafka topic called `watermark` are no markers."""
    assert is_marker(offset) == expected
