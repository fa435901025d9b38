"""A query's checkpoint: Spark's log, and the client's documents under ``<checkpointLocation>/tidegate``."""

import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyarrow import fs

from tidegate_spark.errors import InvalidUsage

_DOCUMENT = re.compile(r"(\d+)\.json")
_NUMBER = re.compile(r"(\d+)")

NO_OFFSET = "-"
"""Stands in Spark's log for a source that has no offset yet."""


def is_marker(offset: str) -> bool:
    """Return whether an offset in Spark's log is that of a source of markers, ``{"watermark": 1, ...}``."""
    if offset == NO_OFFSET:
        return False
    try:
        parsed = json.loads(offset)
    except ValueError:
        return False
    # Kafka has offsets by topic, and a topic may be called "watermark".
    return isinstance(parsed, dict) and "watermark" in parsed and not isinstance(parsed["watermark"], dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """What Spark logged of a batch before it ran it.

    Attributes:
        at_ms: When it planned the batch (epoch milliseconds, by its driver's clock).
        watermark_ms: Its watermark for the batch; 0: none yet.
        watermark_policy: How it merges several watermarks.
    """

    at_ms: int
    watermark_ms: int
    watermark_policy: str | None


class Checkpoint:
    """A query's checkpoint, on any file system that Arrow supports: local, S3, HDFS, GCS, Azure.

    Args:
        location: The location that the query was given.
        folder: The folder of the client's documents under it.
    """

    def __init__(self, location: str, folder: str = "tidegate") -> None:
        self.location, self._folder = location, folder

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "_folder": self._folder}

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return file_system(self.location)

    @cached_property
    def query_id(self) -> str:
        """The id that Spark gave this checkpoint when it started the query.

        Raises:
            InvalidUsage: There is no checkpoint of a query.
        """
        metadata = self._read("metadata")
        if metadata is None:
            raise InvalidUsage(
                f"There is no checkpoint of a query at {self.location!r}, as seen from here. A path without a scheme "
                "is a local one; where Spark takes it for another file system's (on YARN, or Databricks), give the "
                "scheme: hdfs://..., s3a://..., abfss://...."
            )
        return str(json.loads(metadata)["id"])

    def started(self) -> bool:
        """Return whether this process sees a checkpoint of a query."""
        return self._read("metadata") is not None

    def planned(self, batch_id: int) -> Planned | None:
        """Return what Spark planned for a batch; None if its log does not say."""
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
        """Return where each source of a batch ends, as Spark's log has it; None if Spark has forgotten the batch."""
        planned = self._read(f"offsets/{batch_id}")
        return None if planned is None else planned.decode().splitlines()[2:]

    def has_markers(self) -> bool | None:
        """Return whether the last finished batch has a source of markers; None if that is not known."""
        last = self.finished()
        offsets = None if last is None else self.source_offsets(last)
        if not offsets or NO_OFFSET in offsets:
            return None
        return any(map(is_marker, offsets))

    def planned_batches(self) -> list[int]:
        """Return the batches that Spark has planned and not forgotten."""
        return self._numbered("offsets", _NUMBER)

    def planned_ms(self, batch_id: int) -> int | None:
        """Return when Spark planned a batch; see :class:`Planned`."""
        planned = self.planned(batch_id)
        return None if planned is None else planned.at_ms

    def finished(self) -> int | None:
        """Return the last batch that Spark has finished; None if there is none."""
        return max(self._numbered("commits", _NUMBER), default=None)

    def has_finished(self, batch_id: int) -> bool:
        """Return whether Spark has finished a batch, and not forgotten it."""
        files, root = self._place
        found = files.get_file_info(f"{root}/commits/{batch_id}")
        return bool(found.type == fs.FileType.File)

    # -- documents ------------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a document; None if it does not exist. Those of batches are named ``<kind>/<batch>``."""
        document = self._read(f"{self._folder}/{name}.json")
        return None if document is None else dict(json.loads(document))

    def documents(self, kind: str) -> dict[str, float]:
        """Return the names of the documents of a kind, and when each was written (Unix time)."""
        suffix = ".json"
        return {
            info.base_name.removesuffix(suffix): info.mtime_ns / 1e9
            for info in self._in(f"{self._folder}/{kind}")
            if info.base_name.endswith(suffix)
        }

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write a document completely or not at all, in place of the one before."""
        files, root = self._place
        directory, _, last = f"{root}/{self._folder}/{name}".rpartition("/")
        files.create_dir(directory, recursive=True)
        partial = f"{directory}/.{last}.{uuid.uuid4()}.partial"  # several processes may write the same
        with files.open_output_stream(partial) as file:
            file.write(json.dumps(document).encode())
        files.move(partial, f"{directory}/{last}.json")

    def delete(self, name: str) -> None:
        """Delete a document, if it exists."""
        files, root = self._place
        with suppress(FileNotFoundError):
            files.delete_file(f"{root}/{self._folder}/{name}.json")

    def delete_directory(self, name: str) -> None:
        """Delete a directory of files, if it exists."""
        files, root = self._place
        with suppress(FileNotFoundError):
            files.delete_dir(f"{root}/{self._folder}/{name}")

    def batches(self, kind: str) -> list[int]:
        """Return the batches that have a document of a kind, in ascending order."""
        return sorted(self._numbered(f"{self._folder}/{kind}", _DOCUMENT))

    def _read(self, path: str) -> bytes | None:
        files, root = self._place
        try:
            with files.open_input_file(f"{root}/{path}") as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def _numbered(self, directory: str, pattern: re.Pattern[str]) -> list[int]:
        return [int(named.group(1)) for info in self._in(directory) if (named := pattern.fullmatch(info.base_name))]

    def _in(self, directory: str) -> list[fs.FileInfo]:
        files, root = self._place
        return list(files.get_file_info(fs.FileSelector(f"{root}/{directory}", allow_not_found=True)))


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system and path for a path of Hadoop.

    Raises:
        InvalidUsage: Arrow does not support its scheme.
    """
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
            f"checkpointLocation {path!r} cannot be used from here ({error}): pinned watermarks are kept there with "
            "Arrow, which supports local paths, s3a://, hdfs://, gs://, and abfss://."
        ) from None
    return files, root.rstrip("/")
