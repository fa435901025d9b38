"""The sources of a checkpoint as rows with the numbers of their batches: files, Kafka, and tables of Delta Lake."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from tidegate_spark.auditing.checkpoint import Folder, LoggedFile, QueryCheckpoint
from tidegate_spark.auditing.rows import SourceFile, files_with_batches, kafka_with_batches
from tidegate_spark.errors import InvalidUsage

Kind = Literal["files", "kafka", "delta"]

FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc"}
"""Formats by the ends of the names of files, without .gz and the like."""
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4|snappy|deflate)$")
_GLOB = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What a batch has read of a source.

    Attributes:
        batch: Number of the batch.
        start: Where it began, as the JSON of the log; None: at the beginning of the source.
        end: Where it ended.
    """

    batch: int
    start: Any
    end: Any


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a source.

    Attributes:
        rows: The rows with the column ``tidegate_batch``.
        batches: The numbers of the batches by this column; None if the column has them.
        is_logged: Whether the watermarks of the batches are in the log.
    """

    rows: DataFrame
    batches: DataFrame | None = None
    is_logged: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a source that are still there, and what is missing.

    Attributes:
        parts: The rows.
        missing: Files or offsets that are gone, as sentences.
        expected: Number of records between the offsets of the batches; 0 if there are no offsets.
    """

    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    expected: int = 0


def kind_of(checkpoint: QueryCheckpoint, number: int) -> Kind:
    """Return the kind of a source.

    Raises:
        InvalidUsage: If the audit does not know this kind.
    """
    end = next((batch.ends[number] for batch in reversed(checkpoint.batches) if batch.ends[number] is not None), None)
    if number in checkpoint.files:
        return "files"
    if isinstance(end, dict) and "reservoirId" in end:
        return "delta"
    if isinstance(end, dict) and end and all(isinstance(each, dict) for each in end.values()):
        return "kafka"
    shown = json.dumps(end)[:100]
    raise InvalidUsage(
        f"Source {number} of the query has offsets such as {shown}: the audit reads files, Kafka and Delta Lake. Audit "
        "the input with --files or --topic."
    )


def read_files(
    spark: SparkSession,
    reader: DataFrameReader | None,
    files: Mapping[LoggedFile, int],
    options: Mapping[str, str] | None = None,
    first_logged: int = 0,
) -> Found:
    """Return the rows of files.

    Args:
        spark: The session.
        reader: Reader with the format, the schema and the options of the source; None: by the names of the files.
        files: The number of the batch of each file.
        options: Options of the source, if there is no reader.
        first_logged: Number of the first batch whose watermark is in the log.
    """
    there = _existing(spark, [file.path for file in files])
    gone = [file.path for file in files if _plain(file.path) not in there]
    missing = () if not gone else (f"{len(gone):,} of {len(files):,} files are gone, such as {gone[0]}.",)
    kept = [
        SourceFile(_with_one_slash(file.path), batch, *there[_plain(file.path)])
        for file, batch in files.items()
        if _plain(file.path) in there
    ]
    if not kept:
        return Found((), missing)
    reader = reader or spark.read.format(_format(kept[0].url)).options(**(options or {}))
    parts = []
    for is_logged in (False, True):
        of_part = [file for file in kept if (file.batch >= first_logged) == is_logged]
        if of_part:
            rows = reader.load([_GLOB.sub(r"\\\1", _plain(file.url)) for file in of_part])
            parts.append(Part(*files_with_batches(spark, rows, of_part), is_logged))
    return Found(tuple(parts), missing)


def _format(path: str) -> str:
    name = _COMPRESSED.sub("", path.rpartition("/")[2].lower())
    found = next((form for end, form in FORMATS.items() if name.endswith(end)), None)
    if found is None:
        raise InvalidUsage(
            f"The format of {path} does not follow from its name: pass --format, or reader=spark.read.format(…)."
        )
    return found


def _plain(url: str) -> str:
    """Return a URL as a path of Hadoop: decoded, and with one slash after ``file:``."""
    return _with_one_slash(unquote(url))


def _with_one_slash(path: str) -> str:
    return re.sub(r"^file:/+", "file:/", path)


def _existing(spark: SparkSession, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return those of many files that exist, with their time of modification (microseconds) and their size (bytes).

    Spark lists their folders in parallel.
    """
    there: dict[str, tuple[int, int]] = {}
    for folder in sorted({_plain(url).rpartition("/")[0] for url in urls}):
        if Folder(spark, folder).exists:
            reader = spark.read.format("binaryFile").option("recursiveFileLookup", True)
            listed = reader.load(_GLOB.sub(r"\\\1", folder))
            rows = listed.select("path", F.unix_micros("modificationTime"), "length").collect()
            there.update({_with_one_slash(path): (modified_us, size) for path, modified_us, size in rows})
    return there


def read_kafka(spark: SparkSession, options: Mapping[str, str], parts: Sequence[ReadRange]) -> Found:
    """Return the records of topics between the offsets of the batches.

    Args:
        spark: A session with Spark's connector for Kafka.
        options: Options of the source, with ``kafka.bootstrap.servers``.
        parts: The parts of the batches, in order.

    Raises:
        InvalidUsage: If the options have no servers, or Kafka does not answer.
    """
    if "kafka.bootstrap.servers" not in options:
        raise InvalidUsage(
            "The query reads Kafka: pass its servers, with --kafka localhost:9092, or "
            "options={'kafka.bootstrap.servers': 'localhost:9092'}."
        )
    starts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], list[tuple[int, int]]] = {}
    expected = 0
    for part in parts:
        for topic, offsets in part.end.items():
            for name, end in offsets.items():
                of = (topic, int(name))
                before = ends[of][-1][1] if of in ends else int(((part.start or {}).get(topic) or {}).get(name, 0))
                starts.setdefault(of, before)
                ends.setdefault(of, []).append((part.batch, end))
                expected += max(0, end - before)
    if not expected:
        return Found((), (), expected)
    reader = spark.read.format("kafka").option("failOnDataLoss", False).options(**options)
    reader = reader.option("assign", _by_topic(dict.fromkeys(ends)))
    reader = reader.option("startingOffsets", _by_topic(starts))
    rows = reader.option("endingOffsets", _by_topic({of: each[-1][1] for of, each in ends.items()})).load()
    return Found((Part(kafka_with_batches(rows, ends)),), (), expected)


def _by_topic(values: Mapping[tuple[str, int], int | None]) -> str:
    """Return values by topic and partition as JSON; without values, the partitions."""
    found: dict[str, Any] = {}
    for (topic, number), value in values.items():
        if value is None:
            found.setdefault(topic, []).append(number)
        else:
            found.setdefault(topic, {})[str(number)] = value
    return json.dumps(found)


def read_delta(spark: SparkSession, table: str | None, parts: Sequence[ReadRange]) -> Found:
    """Return the rows of the files that the batches have read from a table of Delta Lake.

    A batch has read the files between two offsets: a version, and the place of a file in it. The first batch begins
    with the files of the version at its end.

    Args:
        spark: A session with Delta Lake.
        table: Path of the table.
        parts: The parts of the batches, in order.

    Raises:
        InvalidUsage: If the path is missing, is another table, or the table has deletion vectors or mapped columns.
    """
    if table is None:
        raise InvalidUsage(
            "The query reads a table of Delta Lake, whose path the checkpoint does not have: pass it, with --table "
            "lake/t or table='lake/t'."
        )
    log = Folder(spark, f"{table.rstrip('/')}/_delta_log")
    if not log.exists:
        raise InvalidUsage(f"{table} is no table of Delta Lake: it has no folder _delta_log.")
    files: dict[LoggedFile, int] = {}
    missing: list[int] = []
    for part in parts:
        start, end = part.start and _place(part.start), _place(part.end)
        if start is None:
            version = end[0] if part.end["isStartingVersion"] else end[0] - 1
            first = _files_of_version(spark, table, version)
            files.update((file, part.batch) for place, file in enumerate(first) if (version, place) <= end)
            continue
        snapshot = part.start["isStartingVersion"]
        for version in range(start[0], end[0] + 1):
            if snapshot and version == start[0]:
                added: list[LoggedFile] | None = _files_of_version(spark, table, version)
            else:
                added = _added(log, table, version)
            if added is None:
                missing.append(version)
                continue
            places = enumerate(added)
            files.update((file, part.batch) for place, file in places if start < (version, place) <= end)
    gone = sorted(set(missing) - {_place(parts[-1].end)[0]})
    said = () if not gone else (f"Versions {gone[0]} to {gone[-1]} are no longer in the log of {table}.",)
    reader = spark.read.format("parquet").option("basePath", table)
    found = read_files(spark, reader, files)
    return replace(found, missing=(*said, *found.missing))


def _place(offset: Any) -> tuple[int, int]:
    return int(offset["reservoirVersion"]), int(offset["index"])


def _files_of_version(spark: SparkSession, table: str, version: int) -> list[LoggedFile]:
    """Return the files of a version in the order in which Delta Lake reads them."""
    rows = spark.read.format("delta").option("versionAsOf", version).load(table)
    listed = rows.select("_metadata.file_path", "_metadata.file_modification_time").distinct().collect()
    ordered = sorted((row[1], row[0]) for row in listed)
    return [LoggedFile(path, version, round(at.timestamp() * 1000)) for at, path in ordered]


def _added(log: Folder, table: str, version: int) -> list[LoggedFile] | None:
    """Return the files with new rows of a version; None if the log does not have it."""
    content = log.read(f"{version:020}.json")
    if content is None:
        return None
    found = []
    for line in content.decode().splitlines():
        action = json.loads(line)
        mapping = ((action.get("metaData") or {}).get("configuration") or {}).get("delta.columnMapping.mode", "none")
        added = action.get("add")
        if mapping != "none" or (added and added.get("deletionVector")):
            raise InvalidUsage(
                f"{table} has mapped columns or deletion vectors, so its files cannot be read as they are: audit the "
                "input with --files."
            )
        if added and added.get("dataChange", True):
            found.append(LoggedFile(f"{log.parent}/{added['path']}", version, int(added["modificationTime"])))
    return found
