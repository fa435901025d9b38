"""Access to a query's checkpoint: Spark's log, and the client's documents under ``<checkpointLocation>/tidegate``.

=============================  =========================================================================
``pinned_watermarks/<batch>``  the pinned watermark of a batch, written before a row is classified by it
``progress``                   the progress of the query (:mod:`tidegate_spark.protocol.progress`)
``backlog/<batch>``            a batch that was processed without the coordinator
``choices``                    the columns and windows that the query was started with
``windows/<batch>``            the version of the windows' state after a batch
``state/<batch>``              the rows of that version: an Arrow file, or a directory of Parquet files
``native/<query>/``            the documents of one input of ``with_watermark()``
=============================  =========================================================================

On HDFS, a move onto a file deletes the file first. There, :meth:`Checkpoint.write` first moves the earlier content of
a file to ``<file>.previous``, which counts if the file does not exist.
"""

import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyarrow.dataset import dataset

from tidegate_spark.errors import InvalidUsage

PREVIOUS = ".previous"
"""Suffix of the earlier content of a file that is being replaced."""

_OF_BATCH = re.compile(rf"(\d+)(?:\.json(?:{re.escape(PREVIOUS)})?)?")
"""File name of a batch: its number, with the suffix ``.json`` if it is a document."""

_REPLACE_ATOMICALLY = frozenset({"local", "s3", "gcs", "abfs"})
"""Arrow's file systems on which a move onto a file replaces it in one step."""

FORMAT = 1
"""Format of the documents, which each document contains. Raise it when an older client would misread one."""

NO_OFFSET = "-"
"""The entry in Spark's log for a source that has no offset yet."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Spark's plan of a batch, logged before the batch runs.

    Attributes:
        at_ms: Time at which Spark planned the batch (epoch milliseconds, by the driver's clock).
        watermark_ms: Spark's watermark for the batch; 0 if Spark has none yet.
        watermark_policy: Spark's policy for several watermarks, ``min`` or ``max``; None if not logged.
    """

    at_ms: int
    watermark_ms: int
    watermark_policy: str | None


class Checkpoint:
    """A query's checkpoint on a file system that Arrow supports: local, S3, HDFS, GCS, Azure.

    Args:
        location: The query's ``checkpointLocation``.
        folder: Folder of the client's documents, relative to the location.
    """

    def __init__(self, location: str, folder: str = "tidegate") -> None:
        self.location, self.folder = location, folder

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the file system."""
        return {"location": self.location, "folder": self.folder}

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return file_system(self.location)

    @cached_property
    def query_id(self) -> str:
        """The query id that Spark stored in the checkpoint.

        Raises:
            InvalidUsage: If this process finds no checkpoint.
        """
        metadata = self._read("metadata")
        if metadata is None:
            raise InvalidUsage(
                f"This process finds no checkpoint of a query at {self.location!r}. It looks for a path without a "
                "scheme on the local file system. If Spark uses another file system (on YARN or Databricks), add the "
                "scheme: hdfs://..., s3a://... or abfss://...."
            )
        return str(json.loads(metadata)["id"])

    def started(self) -> bool:
        """Return whether this process finds the checkpoint of a query."""
        return self._read("metadata") is not None

    def planned(self, batch_id: int) -> Planned | None:
        """Return Spark's plan of a batch; None if Spark's log lacks the batch."""
        planned = self._read(f"offsets/{batch_id}")
        if planned is None:
            return None
        _version, metadata, *_offsets = planned.decode().splitlines()
        known = json.loads(metadata)
        if "batchTimestampMs" not in known:
            return None
        policy = (known.get("conf") or {}).get("spark.sql.streaming.multipleWatermarkPolicy")
        return Planned(known["batchTimestampMs"], known.get("batchWatermarkMs", 0), policy)

    def source_offsets(self, batch_id: int) -> list[str] | None:
        """Return the end offset of each source in a batch; None if Spark's log no longer has the batch."""
        planned = self._read(f"offsets/{batch_id}")
        return None if planned is None else planned.decode().splitlines()[2:]

    def has_markers(self) -> bool | None:
        """Return whether the last finished batch has a source of markers; None if not known."""
        last = self.finished()
        offsets = None if last is None else self.source_offsets(last)
        if not offsets or NO_OFFSET in offsets:
            return None
        return any(map(is_marker, offsets))

    def planned_batches(self) -> list[int]:
        """Return the ids of the planned batches in Spark's log."""
        return self._numbered("offsets")

    def planned_ms(self, batch_id: int) -> int | None:
        """Return the time at which Spark planned a batch (epoch milliseconds); None if Spark's log lacks the batch."""
        planned = self.planned(batch_id)
        return None if planned is None else planned.at_ms

    def finished(self) -> int | None:
        """Return the last batch that Spark has finished; None if it has finished none."""
        return max(self._numbered("commits"), default=None)

    def has_finished(self, batch_id: int) -> bool:
        """Return whether Spark's log records a batch as finished."""
        return self._is_file(f"{self._place[1]}/commits/{batch_id}")

    def has_state(self) -> bool:
        """Return whether the query has stateful operators. Before the first batch, it has none."""
        return bool(self._in("state"))

    def operators(self) -> set[str]:
        """Return Spark's names of the stateful operators; empty before the first batch."""
        found = set()
        for info in self._in("state"):
            metadata = self._read(f"state/{info.base_name}/_metadata/metadata")
            if metadata is not None:
                _version, operator = metadata.decode().split("\n", 1)
                found.add(str(json.loads(operator)["operatorInfo"]["operatorName"]))
        return found

    # -- documents ------------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a document; None if it does not exist. Documents of batches are named ``<kind>/<batch>``.

        Raises:
            InvalidUsage: If a newer version of the client has written the document.
        """
        path = f"{self.folder}/{name}.json"
        content = self._read_whole(path)
        if content is None:
            return None
        document: dict[str, Any] = json.loads(content)
        if (written := document.pop("format", FORMAT)) > FORMAT:
            raise InvalidUsage(
                f"The document {path} in the checkpoint {self.location!r} has format {written}, and this version of "
                f"tidegate-spark reads formats up to {FORMAT}. Use the version that wrote it, or a later one."
            )
        return document

    def documents(self, kind: str) -> dict[str, float]:
        """Return the names of the documents of a kind, each with the Unix time of its last write."""
        suffix, found = ".json", dict[str, float]()
        for info in self._in(f"{self.folder}/{kind}"):
            name = info.base_name.removesuffix(PREVIOUS)
            if name.endswith(suffix):
                name = name.removesuffix(suffix)
                found[name] = max(info.mtime_ns / 1e9, found.get(name, 0.0))
        return found

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write or replace a document, completely or not at all."""
        self._write(f"{name}.json", json.dumps({"format": FORMAT, **document}).encode())

    def delete(self, name: str) -> None:
        """Delete a document, if it exists."""
        self._delete(f"{name}.json")

    def delete_directory(self, name: str) -> None:
        """Delete a directory of files, if it exists."""
        files, root = self._place
        with suppress(FileNotFoundError):
            files.delete_dir(f"{root}/{self.folder}/{name}")

    # -- tables ---------------------------------------------------------------------------------------------------

    def read_table(self, name: str) -> pa.Table | None:
        """Return a table; None if it does not exist."""
        content = self._read_whole(f"{self.folder}/{name}.arrow")
        return None if content is None else pa.ipc.open_file(content).read_all()

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write or replace a table, completely or not at all."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, table.schema) as file:
            file.write_table(table)
        self._write(f"{name}.arrow", content.getvalue())

    def delete_table(self, name: str) -> None:
        """Delete a table, if it exists."""
        self._delete(f"{name}.arrow")

    def count_rows(self, name: str) -> int:
        """Return the number of rows in a directory of Parquet files, from their footers."""
        files, root = self._place
        return int(dataset(f"{root}/{self.folder}/{name}", filesystem=files, format="parquet").count_rows())

    # -- files ----------------------------------------------------------------------------------------------------

    def batches(self, kind: str) -> list[int]:
        """Return the batches that have a document of a kind, in ascending order."""
        return sorted(set(self._numbered(f"{self.folder}/{kind}")))

    def _write(self, name: str, content: bytes | pa.Buffer) -> None:
        files, root = self._place
        directory, _, last = f"{root}/{self.folder}/{name}".rpartition("/")
        files.create_dir(directory, recursive=True)
        partial = f"{directory}/.{last}.{uuid.uuid4()}.partial"  # several processes may write the same document
        with files.open_output_stream(partial) as file:
            file.write(content)
        path = f"{directory}/{last}"
        # Without a file, keep the previous content: it counts until the move below.
        if not self._replaces_atomically and self._is_file(path):
            try:
                files.move(path, path + PREVIOUS)
            except OSError:
                if self._is_file(path):
                    raise  # else another process is replacing the file, too
        files.move(partial, path)

    def _delete(self, name: str) -> None:
        files, root = self._place
        path = f"{root}/{self.folder}/{name}"
        # Delete the previous content first, or a crash would bring it back.
        for each in (path,) if self._replaces_atomically else (path + PREVIOUS, path):
            with suppress(FileNotFoundError):
                files.delete_file(each)

    @property
    def _replaces_atomically(self) -> bool:
        return self._place[0].type_name in _REPLACE_ATOMICALLY

    def _is_file(self, path: str) -> bool:
        return bool(self._place[0].get_file_info(path).type == fs.FileType.File)

    def _read_whole(self, path: str) -> bytes | None:
        """Return the content of a file that :meth:`_write` has written; None if it does not exist."""
        # Between the first two attempts, a writer may replace the previous content by the file.
        for attempt in (path,) if self._replaces_atomically else (path, path + PREVIOUS, path):
            if (content := self._read(attempt)) is not None:
                return content
        return None

    def _read(self, path: str) -> bytes | None:
        files, root = self._place
        try:
            with files.open_input_file(f"{root}/{path}") as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def _numbered(self, directory: str) -> list[int]:
        return [int(named.group(1)) for info in self._in(directory) if (named := _OF_BATCH.fullmatch(info.base_name))]

    def _in(self, directory: str) -> list[fs.FileInfo]:
        files, root = self._place
        return list(files.get_file_info(fs.FileSelector(f"{root}/{directory}", allow_not_found=True)))


def is_marker(offset: str) -> bool:
    """Return whether an offset belongs to a source of watermarks of this package: ``{"watermark": 1, ...}``."""
    parsed = None if offset == NO_OFFSET else json.loads(offset)
    # Kafka's offsets are keyed by topic, and a topic may be named "watermark".
    return isinstance(parsed, dict) and "watermark" in parsed and not isinstance(parsed["watermark"], dict)


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system and path for a Hadoop path; raise InvalidUsage if Arrow does not support it."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), os.path.abspath(path)
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    arrow_scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    try:
        files, root = fs.FileSystem.from_uri(f"{arrow_scheme}:{rest}")
    except (ValueError, NotImplementedError, OSError) as error:
        raise InvalidUsage(
            f"The client cannot use checkpointLocation {path!r} ({error}): it stores pinned watermarks there with "
            "Arrow, which supports local paths, s3a://, hdfs://, gs:// and abfss://. Use one of these."
        ) from None
    return files, root.rstrip("/")
