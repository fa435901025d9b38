"""What Spark's plan of a stream tells about its sources."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame

from tidegate_spark.columns import Columns
from tidegate_spark.sources.offsets import PartitionNames
from tidegate_spark.spark_session import is_connect

FILES = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
"""Sources whose partitions depend on the sizes of the files in a batch."""

_FILE_LIMIT_NAMES = {"maxfilespertrigger": "maxFilesPerTrigger", "maxbytespertrigger": "maxBytesPerTrigger"}
_OF_KAFKA = "kafka."
"""Prefix of the options that are settings of Kafka's client."""
_MINIMUM = "minoffsetspertrigger"
_FAIL_ON_LOSS = "failondataloss"
_TASK_SIZES = frozenset({"minpartitions", "maxrecordsperpartition"})
"""Options with which Spark splits the partitions of Kafka into tasks."""

TABLES = frozenset({"delta", "iceberg"})
"""Sources that the client can ask, in the driver of a classic session, whether they have more input."""

_COMPLETE_SOURCES = frozenset({"memory", "rate", "rate-micro-batch", "socket", "tidegate-markers", "tidegate-native"})
"""Sources whose batches contain all input."""


@dataclass(frozen=True, slots=True)
class StreamSources:
    """What the plan of a stream tells about the sizes of batches.

    Attributes:
        has_file_limit: Whether a source of files limits the size of batches.
        has_kafka: Whether Kafka is a source.
        has_minimum: Whether Kafka's source waits for a minimum of input (``minOffsetsPerTrigger``).
        kafka_settings: The settings of a client of Kafka; None without Kafka, or if its sources have several brokers.
        reads_committed: Whether Kafka's source reads committed records only.
        reads_on: Whether Kafka's source reads on after records that Kafka has deleted (``failOnDataLoss``).
        tasks_are_partitions: Whether Kafka is the only source, and each of its partitions is a task.
        are_complete: Whether the user has declared that batches are complete; see :meth:`Stream.complete_batches`.
        unknown: Sources whose batches may lack input, and of which the client cannot see when they are caught up under
            load. Each as a user would name it.
    """

    has_file_limit: bool = False
    has_kafka: bool = False
    has_minimum: bool = False
    kafka_settings: Mapping[str, str] | None = None
    reads_committed: bool = False
    reads_on: bool = False
    tasks_are_partitions: bool = False
    are_complete: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def has_all_input(self) -> bool:
        """Whether each batch is known to contain all input, also without offsets."""
        return not (self.has_kafka or self.unknown)


def sources_of(df: DataFrame, are_complete: bool, asks: bool) -> StreamSources:
    """Return what the plan of a stream tells about its sources, and what the user has declared.

    ``asks`` tells whether the client asks sources for more input when a batch begins.
    """
    has_file_limit = has_kafka = has_minimum = reads_committed = reads_on = False
    tasks_are_partitions = True
    of_brokers: dict[str, Mapping[str, str]] = {}
    unknown: list[str] = []
    for name, options in _connect_reads(df) if is_connect(df.sparkSession) else _reads(df):
        if name != "kafka" or options.keys() & _TASK_SIZES:
            tasks_are_partitions = False
        if name in FILES:
            limits = options.keys() & _FILE_LIMIT_NAMES.keys()
            has_file_limit = has_file_limit or bool(limits)
            unknown += [f"{name} (with {_FILE_LIMIT_NAMES[limit]})" for limit in sorted(limits)]
        elif name == "kafka":
            has_kafka, has_minimum = True, has_minimum or _MINIMUM in options
            settings = {name.removeprefix(_OF_KAFKA): options[name] for name in options if name.startswith(_OF_KAFKA)}
            reads_committed = reads_committed or settings.get("isolation.level") == "read_committed"
            reads_on = reads_on or options.get(_FAIL_ON_LOSS, "true").lower() == "false"
            of_brokers[settings.get("bootstrap.servers", "")] = settings
        elif name not in _COMPLETE_SOURCES and not (asks and name in TABLES):
            unknown.append(name)
    if reads_committed and len(of_brokers) > 1:
        unknown.append("kafka (committed records of several brokers)")
    return StreamSources(
        has_file_limit,
        has_kafka,
        has_minimum,
        next(iter(of_brokers.values())) if len(of_brokers) == 1 else None,
        reads_committed,
        reads_on,
        tasks_are_partitions and has_kafka,
        are_complete,
        () if are_complete else tuple(unknown),
    )


def _reads(df: DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each streaming source and its options, with names in lower case."""
    leaves = cast(Any, df)._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming():
            continue
        kind = str(leaf.getClass().getSimpleName())
        if kind == "StreamingRelation":
            yield source_name(leaf), _options(leaf.dataSource().options().iterator())
        elif kind == "StreamingRelationV2":
            of_java = leaf.extraOptions().asCaseSensitiveMap()
            yield source_name(leaf).lower(), {str(name).lower(): str(of_java[name]) for name in of_java}
        else:
            yield kind, {}


def _options(pairs: Any) -> dict[str, str]:
    """Return the pairs of an iterator of Scala."""
    found = {}
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1()).lower()] = str(pair._2())
    return found


def _connect_reads(df: DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what :func:`_reads` yields, from the messages that PySpark sends to the server."""
    spark: Any = df.sparkSession
    waiting: list[Any] = [cast(Any, df)._plan.to_proto(spark.client)]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.full_name == "spark.connect.Read" and message.is_streaming:
            if message.HasField("data_source"):
                source = message.data_source
                yield source.format.lower(), {name.lower(): value for name, value in source.options.items()}
            else:
                yield "table", {}
        for field, value in message.ListFields():
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            waiting.extend([value] if isinstance(value, type(message)) or hasattr(value, "DESCRIPTOR") else value)


def partition_names(columns: Columns, df: DataFrame) -> PartitionNames | None:
    """Return the names of the substreams if they are the partitions or topics of the only source, which is Kafka.

    The substream columns must be the columns ``topic`` and ``partition`` of the source, not expressions of them.
    """
    named = columns.substream_columns
    if not named or is_connect(df.sparkSession):
        return None
    plan: Any = df._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    if leaves.size() != 1 or source_name(leaves.apply(0)) != "kafka":
        return None
    of_source = {id_: name for name, id_ in _attributes(leaves.apply(0)) if name in ("topic", "partition")}
    found = {name: of_source.get(id_) for name, id_ in _attributes(plan)}
    kinds = [found.get(name) for name in named]
    return PartitionNames(tuple(kind for kind in kinds if kind)) if all(kinds) else None


def _attributes(plan: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the id of each column of a step. A column that a step passes on unchanged keeps its id."""
    output = plan.output()
    for index in range(output.size()):
        attribute = output.apply(index)
        yield str(attribute.name()), int(attribute.exprId().id())


def source_name(leaf: Any) -> str:
    """Return the short name of the source of a leaf of a plan."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelation":
        return str(leaf.dataSource().className()).lower()
    return str(leaf.sourceName()) if kind == "StreamingRelationV2" else kind
