"""The checkpoint of a query, as Spark writes it: its batches, the offsets of its sources, and its stateful operators.

The log of offsets has the watermark of each of the last batches, and the ends of the sources. A file source keeps the
names of all files that it has read. The schema of the state has the delay of the watermark, and whether an operator
judges a row by its window or by its own time. The audit only reads.
"""

import gzip
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.spark_session import is_connect

log = logging.getLogger("tidegate")

Judgement = Literal["window", "row"]
"""What an operator compares with the watermark: the end of a row's window, or the event time of the row."""

VERSIONS = ("v1",)
"""Versions of the logs that this module reads."""
DELAY, IS_WINDOW, IS_SESSION = "spark.watermarkDelayMs", "spark.timeWindow", "spark.sessionWindow"
"""Metadata of a column in the schema of a state."""

_JUDGED_BY_ROW = ("dedupeWithinWatermark", "transformWithState", "flatMapGroupsWithState", "applyInPandasWithState")
"""Beginnings of the names of operators whose state has no column with the watermark. They judge single rows."""
_TIME_MODE = re.compile(rb'timeMode\\*":\\*"(\w+)')
"""The time mode of transformWithState, in the metadata of the operator. Only the mode EventTime drops rows."""
_BY_FIELD = {"expiresAtMicros": "dedupeWithinWatermark", "timeoutTimestamp": "flatMapGroupsWithState"}
"""Fields in the schema of a state that only one operator has."""
_ZSTD_MAGIC, _GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch in the log of offsets.

    Attributes:
        batch_id: Spark's id of the batch.
        watermark: Watermark of the batch (epoch milliseconds).
        planned_ms: Time at which Spark planned the batch (epoch milliseconds).
        ends: End of each source, as its JSON; None before its first rows.
        policy: How Spark merges the watermarks of several sources: ``min`` or ``max``.
    """

    batch_id: int
    watermark: int
    planned_ms: int
    ends: tuple[Any, ...]
    policy: str


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file that a file source has read.

    Attributes:
        path: URL of the file.
        offset: Offset of the source at which it was read.
        changed_ms: Time of its last change, as the source saw it (epoch milliseconds).
    """

    path: str
    offset: int
    changed_ms: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator.

    Attributes:
        number: Spark's number of the operator.
        name: Spark's name of the operator.
        judged: What it compares with the watermark; None if it drops no rows.
        delays_ms: Delays of the watermarks in its state. Most operators have one, a join has one for each side.
    """

    number: int
    name: str
    judged: Judgement | None
    delays_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """What the checkpoint of a query holds.

    Attributes:
        path: The checkpoint.
        query_id: Id of the query.
        batches: Committed batches in the log of offsets, first one first.
        next_watermarks: Watermark after each committed batch in the log of commits.
        files: Files of each file source by its number, in the order of their offsets.
        starts: First offsets of the other sources by number, as JSON.
        operators: Stateful operators.
    """

    path: str
    query_id: str
    batches: tuple[LoggedBatch, ...]
    next_watermarks: Mapping[int, int]
    files: Mapping[int, tuple[LoggedFile, ...]]
    starts: Mapping[int, Any]
    operators: tuple[Operator, ...]


class Folder:
    """A folder of any file system of the session."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        if is_connect(spark):
            raise InvalidUsage(
                "The audit needs a classic session: over Spark Connect, Python cannot read files of a checkpoint. "
                "Run it with a local session that reaches the checkpoint and the source."
            )
        self.path = path
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._at: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        try:
            self._files = self._at.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            self.exists = bool(self._files.exists(self._at))
        except Exception as error:  # noqa: BLE001 - Py4J and each file system have their own errors
            raise InvalidUsage(f"Cannot read {path}: {_first_line(error)}") from None

    @property
    def parent(self) -> str:
        """The URL of the folder that contains this one."""
        return str(self._files.makeQualified(self._at.getParent()).toString())

    def names(self, inside: str = "") -> list[str]:
        """Return the names in a folder, or none if there is no such folder."""
        folder = self._jvm.org.apache.hadoop.fs.Path(self._at, inside) if inside else self._at
        if not self._files.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(folder))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""
        file = self._jvm.org.apache.hadoop.fs.Path(self._at, name)
        if not self._files.exists(file):
            return None
        try:
            stream = self._files.open(file)
            try:
                content = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - Py4J and each file system have their own errors
            raise InvalidUsage(f"Cannot read {self.path}/{name}: {_first_line(error)}") from None
        return _decompressed(content)


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java).splitlines()[0]


def _decompressed(content: bytes) -> bytes:
    if content.startswith(_GZIP_MAGIC):
        return gzip.decompress(content)
    if content.startswith(_ZSTD_MAGIC):
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd") as stream:
            return bytes(stream.read())
    return content


def read_checkpoint(spark: SparkSession, path: str) -> QueryCheckpoint:
    """Return what a checkpoint holds.

    Args:
        spark: A classic session that reaches the checkpoint.
        path: The checkpoint, as in ``checkpointLocation``.

    Raises:
        InvalidUsage: If it is no checkpoint, has no committed batch, or was written by a version that is not known.
    """
    folder = Folder(spark, path)
    if not folder.exists:
        raise InvalidUsage(f"There is no folder {path}: pass the checkpointLocation of the query.")
    metadata = folder.read("metadata")
    logged = _numbers(folder.names("offsets"))
    if metadata is None:
        raise InvalidUsage(
            f"{path} is no checkpoint of a query: it has no file metadata. Pass the checkpointLocation of the query."
        )
    commits = {number: _lines(folder, f"commits/{number}") for number in _numbers(folder.names("commits"))}
    batches = tuple(_batch(number, _lines(folder, f"offsets/{number}")) for number in logged if number in commits)
    if not batches:
        raise InvalidUsage(f"{path} has no committed batch yet: run the query, and audit it then.")
    files, starts = _sources(folder)
    return QueryCheckpoint(
        path,
        str(json.loads(metadata)["id"]),
        batches,
        {number: int(json.loads(lines[0])["nextBatchWatermarkMs"]) for number, lines in commits.items() if lines},
        files,
        starts,
        tuple(_operators(folder)),
    )


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


def _lines(folder: Folder, name: str) -> list[str]:
    """Return the lines of a log after that of its version."""
    content = folder.read(name)
    if content is None:
        raise InvalidUsage(f"{folder.path}/{name} was removed during the audit: run it again.")
    version, *lines = content.decode(errors="replace").splitlines()
    # The file with the first offsets of Kafka begins with a byte for Spark 2.1.
    version = version.removeprefix("\x00").removeprefix("0")
    if version not in VERSIONS:
        raise InvalidUsage(
            f"{folder.path}/{name} has the format {version[:20]!r}; this audit reads {', '.join(VERSIONS)}. Update "
            "tidegate-spark, or audit the input with --files or --topic."
        )
    return lines


def _batch(number: int, lines: list[str]) -> LoggedBatch:
    metadata = json.loads(lines[0])
    ends = tuple(None if line == "-" else json.loads(line) for line in lines[1:])
    policy = metadata.get("conf", {}).get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    return LoggedBatch(number, int(metadata["batchWatermarkMs"]), int(metadata["batchTimestampMs"]), ends, policy)


def _sources(folder: Folder) -> tuple[dict[int, tuple[LoggedFile, ...]], dict[int, Any]]:
    """Return the files of the file sources, and the first offsets of the others."""
    files: dict[int, tuple[LoggedFile, ...]] = {}
    starts: dict[int, Any] = {}
    for number in _numbers(folder.names("sources")):
        names = folder.names(f"sources/{number}")
        entries = list(_log_of_files(folder, f"sources/{number}", names))
        if entries and all("path" in entry for entry in entries):
            found = (LoggedFile(each["path"], int(each["batchId"]), int(each["timestamp"])) for each in entries)
            files[number] = tuple(sorted(found, key=lambda file: file.offset))
        elif entries:
            starts[number] = entries[0]
    return files, starts


def _log_of_files(folder: Folder, inside: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of the log of a source. A compacted file has all entries up to its number."""
    compacted = max(
        (int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+\.compact", name)), default=-1
    )
    later = [str(number) for number in _numbers(names) if number > compacted]
    for name in [*([f"{compacted}.compact"] if compacted >= 0 else []), *later]:
        for line in _lines(folder, f"{inside}/{name}"):
            if line.strip():
                yield json.loads(line)


def _operators(folder: Folder) -> Iterator[Operator]:
    for number in _numbers(folder.names("state")):
        inside = f"state/{number}"
        content = folder.read(f"{inside}/_metadata/metadata") or folder.read(f"{inside}/_metadata/v2/0")
        name = "" if content is None else _operator_name(content)
        schemas = list(_schemas(folder, inside))
        if not name:  # Spark 3.5 writes no names of operators
            fields = {field["name"] for schema in schemas for field in schema["fields"]}
            name = next((name for field, name in _BY_FIELD.items() if field in fields), "")
        columns = [column for schema in schemas for column in _columns(schema)]
        of_watermark = [metadata for metadata in columns if DELAY in metadata]
        judged: Judgement | None = None
        if any(IS_SESSION in metadata for metadata in of_watermark):
            raise InvalidUsage(
                f"Operator {number} ({name}) has session windows, whose ends depend on all rows of a key: the audit "
                "cannot count their lost rows. Audit the input with --files or --topic."
            )
        if name.startswith(_JUDGED_BY_ROW):
            mode = _TIME_MODE.search(content or b"")
            judged = "row" if mode is None or mode[1] == b"EventTime" else None
        elif of_watermark:
            judged = "window" if any(IS_WINDOW in metadata for metadata in of_watermark) else "row"
        yield Operator(number, name, judged, tuple(sorted({int(metadata[DELAY]) for metadata in of_watermark})))


def _operator_name(content: bytes) -> str:
    found = re.search(rb'"operatorName":"([^"]*)"', content)
    return "" if found is None else found[1].decode()


def _schemas(folder: Folder, inside: str) -> Iterator[Any]:
    """Yield the schemas of the first partition of an operator's state."""
    stores = [f"{inside}/0/{name}" for name in folder.names(f"{inside}/0") if not name.startswith((".", "_"))]
    for store in (f"{inside}/0", *stores):
        content = folder.read(f"{store}/_metadata/schema")
        if content is not None:
            text = content.decode(errors="replace")
            for found in re.finditer(re.escape('{"type":"struct"'), text):
                # A nested schema is found a second time, which does no harm.
                yield json.JSONDecoder().raw_decode(text, found.start())[0]


def _columns(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the metadata of each column of a schema, also of nested ones."""
    for column in schema.get("fields", ()):
        yield column.get("metadata", {})
        if isinstance(column.get("type"), dict):
            yield from _columns(column["type"])


STATE_ROWS = 10_000
"""Number of rows of the state in which to look for windows."""


def windows_in_state(spark: SparkSession, path: str, operator: Operator) -> set[tuple[int, int]]:
    """Return the windows in the state of an operator, each as its size and its start modulo the size (milliseconds).

    The result is empty if the state has no windows, or if this Spark cannot read it (before 4.0, or another version).

    Args:
        spark: The session.
        path: The checkpoint.
        operator: The operator.
    """
    try:
        state = spark.read.format("statestore").option("operatorId", operator.number).load(path)
        key = state.schema["key"].dataType
        columns = key.fields if isinstance(key, StructType) else []
        window = next((each.name for each in columns if _is_window(each.dataType)), None)
        if window is None:
            return set()
        start, end = (F.unix_millis(f"key.`{window}`.{name}") for name in ("start", "end"))
        found = state.limit(STATE_ROWS).select((end - start).alias("size"), start.alias("start")).distinct()
        return {(row.size, row.start % row.size) for row in found.collect() if row.size and row.size > 0}
    except Exception as error:  # noqa: BLE001 - Spark raises errors of several kinds, such as those of Java as they are
        log.info("The state cannot be read, so that the windows are not compared with it: %s", error)
        return set()


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and kind.names == ["start", "end"]
