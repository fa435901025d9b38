"""Small documents beside a query's checkpoint, under ``<checkpointLocation>/tidegate``: one per batch and kind."""

import json
import os
import re
from contextlib import suppress
from functools import cached_property
from typing import Any

from pyarrow import fs

from tidegate_spark.errors import InvalidUsage

_DOCUMENT = re.compile(r"(\d+)\.json")


class Checkpoint:
    """A query's checkpoint, on any file system that Arrow knows: local, S3, HDFS, GCS, Azure."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location}

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return file_system(self.location)

    @cached_property
    def query_id(self) -> str:
        """The id that Spark gave this checkpoint: it is in the checkpoint's metadata once the query was started."""
        files, root = self._place
        with files.open_input_file(f"{root}/metadata") as file:
            return str(json.loads(file.read())["id"])

    def read(self, kind: str, batch_id: int) -> dict[str, Any] | None:
        """The document of a batch, None where there is none."""
        files, root = self._place
        try:
            with files.open_input_file(f"{root}/tidegate/{kind}/{batch_id}.json") as file:
                document: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        return document

    def write(self, kind: str, batch_id: int, document: dict[str, Any]) -> None:
        """Keeps the document of a batch, whole or not at all, in place of the one before."""
        files, root = self._place
        directory = f"{root}/tidegate/{kind}"
        files.create_dir(directory, recursive=True)
        partial = f"{directory}/.{batch_id}.partial"
        with files.open_output_stream(partial) as file:
            file.write(json.dumps(document).encode())
        files.move(partial, f"{directory}/{batch_id}.json")

    def delete(self, kind: str, batch_id: int) -> None:
        """Forgets the document of a batch, if there is one."""
        files, root = self._place
        with suppress(FileNotFoundError):
            files.delete_file(f"{root}/tidegate/{kind}/{batch_id}.json")

    def batches(self, kind: str) -> list[int]:
        """The batches that have a document of a kind, in order."""
        files, root = self._place
        found = files.get_file_info(fs.FileSelector(f"{root}/tidegate/{kind}", allow_not_found=True))
        return sorted(int(named.group(1)) for info in found if (named := _DOCUMENT.fullmatch(info.base_name)))


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
