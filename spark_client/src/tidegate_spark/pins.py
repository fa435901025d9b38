"""The pins of a query, kept beside its checkpoint: ``<checkpointLocation>/tidegate/pins/<batch>.json``.

A pin is written here before it is used, and sent with every begin of its batch: a coordinator that has lost it takes it
from here. Beside it lies the watermark token of that moment, so that a restarted query can prove what it was told.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyarrow import fs

from tidegate_spark.errors import InvalidUsage

KEPT = 100
"""How many batches' pins are kept; Spark's ``minBatchesToRetain`` is 100 unless it was changed."""


@dataclass(frozen=True, slots=True)
class KeptPin:
    """A pin as it was written. ``pin`` None: the batch began before there was a watermark."""

    pin: int | None
    watermark_token: str


class Pins:
    """Pins beside one checkpoint. Any file system that Arrow knows: local, S3, HDFS, GCS, Azure."""

    def __init__(self, checkpoint: str, kept: int = KEPT) -> None:
        self.checkpoint = checkpoint
        self.kept = kept

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return file_system(self.checkpoint)

    @cached_property
    def query_id(self) -> str:
        """The id that Spark gave this checkpoint: it is in the checkpoint's metadata once the query was started."""
        files, root = self._place
        with files.open_input_file(f"{root}/metadata") as file:
            return str(json.loads(file.read())["id"])

    def read(self, batch_id: int) -> KeptPin | None:
        """The pin of a batch that was begun on this checkpoint before."""
        files, root = self._place
        try:
            with files.open_input_file(f"{root}/tidegate/pins/{batch_id}.json") as file:
                kept: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        return KeptPin(kept["pin"], kept["watermark_token"])

    def write(self, batch_id: int, kept: KeptPin) -> None:
        """Keeps a pin, whole or not at all, and forgets the one that is too old to be asked for."""
        files, root = self._place
        directory = f"{root}/tidegate/pins"
        files.create_dir(directory, recursive=True)
        partial = f"{directory}/.{batch_id}.partial"
        with files.open_output_stream(partial) as file:
            file.write(json.dumps({"pin": kept.pin, "watermark_token": kept.watermark_token}).encode())
        files.move(partial, f"{directory}/{batch_id}.json")
        if batch_id >= self.kept:
            with suppress(FileNotFoundError):
                files.delete_file(f"{directory}/{batch_id - self.kept}.json")


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Where a Hadoop path lies, in Arrow's terms.

    :raises InvalidUsage: for a scheme that Arrow does not know.
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
            f"checkpointLocation {path!r} is on a file system that Arrow cannot use ({error}); "
            "the pins are kept there, so use one that it can: a local path, s3a://, hdfs://, gs://, abfss://."
        ) from error
    return files, root.rstrip("/")
