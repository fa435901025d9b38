"""A file system with the semantics of HDFS as Arrow offers it: a move onto a file deletes the file first."""

from collections.abc import Callable
from typing import Any

from pyarrow import fs


class DeleteFirst(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A local file system whose rename refuses an existing destination.

    Arrow's HDFS deletes the destination and renames again, in two steps that a crash or a reader can separate.

    Args:
        step: A function that is called before and after each change of the file system, with a description.
    """

    def __init__(self, step: Callable[[str], None]) -> None:
        self._files, self._step = fs.LocalFileSystem(), step

    def _change(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._step(f"before {what}")
        result = call(*arguments)
        self._step(f"after {what}")
        return result

    def get_type_name(self) -> str:
        return "hdfs"

    def move(self, src: str, dest: str) -> None:
        if self._files.get_file_info(dest).type == fs.FileType.File:
            self._change(f"deletion of {dest} for a move", self._files.delete_file, dest)
        self._change(f"rename to {dest}", self._files.move, src, dest)

    def delete_file(self, path: str) -> None:
        self._change(f"deletion of {path}", self._files.delete_file, path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._change(f"creation of {path}", self._files.open_output_stream, path)

    def get_file_info(self, paths: list[str]) -> Any:
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self._files.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        return self._files.open_input_stream(path)

    def normalize_path(self, path: str) -> str:
        return path

    def _not_used(self, *arguments: Any) -> Any:
        raise NotImplementedError

    copy_file = delete_dir = delete_dir_contents = delete_root_dir_contents = open_append_stream = _not_used
