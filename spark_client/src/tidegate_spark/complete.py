"""Up to which event time a table is complete, for readers: ``complete_up_to`` and ``tidegate table``.

A table at a path needs no further package: the reader takes what it needs from the log of Delta Lake, or from the
metadata of Iceberg. A name in a catalog needs a Spark session, or the package ``pyiceberg`` (extra ``tables``).
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from pyarrow import fs

from tidegate_spark.claims import Claim, TableHistory, delta_history, iceberg_history
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.checkpoint import file_system

COMMITS_READ = 1000
"""Number of commits of a Delta table that are read. A table without a claim in them has none."""
AT_ONCE = 16
"""Number of files that are read at the same time."""

_COMMIT = re.compile(r"(\d{20})\.json")


def complete_up_to(table: Any, *, job: str | None = None, version: int | None = None) -> Claim | None:
    """Return up to which event time a table has all rows on time of a job.

    Rows below ``claim.watermark`` at ``claim.version`` are a cut that each later read repeats. Two tables of a job have
    the same cut at any time below both watermarks.

    Args:
        table: One of these: the path of a table; the name of a table in a catalog of the active Spark session, or else
            of ``pyiceberg`` (``catalog.database.table``); a table of ``deltalake`` or ``pyiceberg``.
        job: Name of the job; None: the only job that has written claims.
        version: The version to read, of Delta Lake, or the id of a snapshot of Iceberg; None: the latest one, or that
            which the table of ``deltalake`` has loaded. A published watermark of an Iceberg table is that of the latest
            version only.

    Returns:
        The claim; None if no job has written a claim for this version.

    Raises:
        InvalidUsage: If there is no such table or version, no reader for it, or several jobs have written claims.
    """
    return _history(table, version).claim(job)


def _history(table: Any, version: int | None) -> TableHistory:
    if isinstance(table, (str, os.PathLike)):
        name = os.fspath(table)
        is_path = isinstance(table, os.PathLike) or "/" in name or os.path.exists(name)
        return _at_path(name, version) if is_path else _in_catalog(name, version)
    package = type(table).__module__.partition(".")[0]
    if package == "deltalake":
        return _at_path(table.table_uri, table.version() if version is None else version)
    if package == "pyiceberg":
        return _of_pyiceberg(table, version)
    raise InvalidUsage(f"complete_up_to() takes a name, a path, or a table of deltalake or pyiceberg, not {table!r}.")


def _at_path(path: str, version: int | None) -> TableHistory:
    """Return the history of a table at a path, on a file system that Arrow supports."""
    try:
        files, root = file_system(path)
        if root.endswith(".metadata.json"):
            return iceberg_history(json.loads(_read(files, root)), version)
        hint = f"{root}/metadata/version-hint.text"  # a Hadoop catalog names the latest metadata there
        if files.get_file_info(hint).type is fs.FileType.File:
            metadata = f"{root}/metadata/v{_read(files, hint).decode().strip()}.metadata.json"
            return iceberg_history(json.loads(_read(files, metadata)), version)
        return _of_delta(files, root, version)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidUsage):
            raise
        raise InvalidUsage(f"The table at {path} cannot be read: {_line(error)}") from error


def _of_delta(files: fs.FileSystem, root: str, version: int | None) -> TableHistory:
    listed = files.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
    found = {int(match[1]): info.path for info in listed if (match := _COMMIT.fullmatch(info.base_name))}
    if not found:
        raise InvalidUsage(
            f"There is no table at {root}: it has neither _delta_log nor metadata/version-hint.text. For an Iceberg "
            "table, pass a file *.metadata.json, or its name in a catalog."
        )
    latest = max(found) if version is None else version
    read = sorted((number for number in found if number <= latest), reverse=True)[:COMMITS_READ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        entries = pool.map(lambda number: _commit_info(number, _read(files, found[number])), read)
    return delta_history(entries, latest)


def _commit_info(version: int, commit: bytes) -> Mapping[str, Any]:
    """Return what a commit says about itself; only its version if it says nothing."""
    for line in commit.splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            return {"operation": "", **action["commitInfo"], "version": version}
    return {"version": version, "operation": ""}


def _read(files: fs.FileSystem, path: str) -> bytes:
    with files.open_input_file(path) as file:
        content: bytes = file.read()
    return content


def _in_catalog(name: str, version: int | None) -> TableHistory:
    """Return the history of a table in a catalog of the active Spark session, or else of ``pyiceberg``."""
    # Only a program that has imported PySpark can have a session.
    sql: Any = sys.modules.get("pyspark.sql")
    spark = None if sql is None else sql.SparkSession.getActiveSession()
    if spark is not None:
        from tidegate_spark.tables import table_on

        return table_on(spark, name).history(version)
    catalog, _, identifier = name.partition(".")
    if "." not in identifier:
        raise InvalidUsage(f"{name!r} is no path, and no name in a catalog: write catalog.database.table, or ./{name}.")
    try:
        catalogs: Any = import_module("pyiceberg.catalog")
    except ModuleNotFoundError:
        raise InvalidUsage(
            f"The name {name} needs the package pyiceberg: install tidegate-spark[tables], or start a Spark session."
        ) from None
    try:
        table = catalogs.load_catalog(catalog).load_table(identifier)
    except Exception as error:  # each catalog has its own errors
        raise InvalidUsage(
            f"The table {name} cannot be loaded: {_line(error)} Without a catalog server, as with the type hadoop, "
            "pass the path of the table."
        ) from error
    return _of_pyiceberg(table, version)


def _of_pyiceberg(table: Any, version: int | None) -> TableHistory:
    return iceberg_history(json.loads(table.metadata.model_dump_json(by_alias=True)), version)


def _line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__
