"""Tables of Delta Lake and Iceberg on a Spark session: guarded appends, published watermarks, and their history.

The format follows from the table. Delta Lake refuses a batch that it has in the transaction itself. In Iceberg, the
client searches the ancestors of the current snapshot for the batch, and then appends.
"""

import json
from abc import ABC, abstractmethod
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.batch import Assumption
from tidegate_spark.claims import (
    AppendRecord,
    PublishedWatermark,
    TableCommit,
    TableHistory,
    delta_history,
    iceberg_history,
)
from tidegate_spark.errors import InvalidUsage, UnsafeWrite
from tidegate_spark.spark_session import is_connect

TRANSACTIONS_EXPIRE = "delta.setTransactionRetentionDuration"
"""Property of a Delta table after which it forgets the batches of writers that have stopped."""

NEAR = 20
"""Number of snapshots, from the current one back, that are read one by one."""

_SELECTORS = ("branch_", "tag_", "snapshot_id_", "at_timestamp_")
"""Beginnings of the last part of a name by which Iceberg selects a branch or a version of a table."""

_WRITE_AUDIT_PUBLISH = ("spark.wap.id", "spark.wap.branch")
"""Settings with which Iceberg stages appends outside the current version."""


class Table(ABC):
    """A table on a Spark session.

    Attributes:
        spark: The session.
        name: The table, as the user has named it: a name in a catalog, or a path.
        identity: The location of the table, which is the same for all of its names.
    """

    def __init__(self, spark: SparkSession, name: str, identity: str) -> None:
        self.spark, self.name, self.identity = spark, name, identity
        self._jvm: Any = spark._jvm

    @abstractmethod
    def append_once(
        self, df: DataFrame, record: AppendRecord, replayed: bool, assume: Assumption | None = None
    ) -> tuple[bool, int]:
        """Append rows unless the table has the batch of the record.

        Args:
            df: The rows.
            record: The record, which identifies the batch.
            replayed: Whether an earlier attempt of the batch may have appended the rows.
            assume: What holds if the table cannot tell; None: raise an error.

        Returns:
            Whether the rows were appended, and a version of the table that has them.

        Raises:
            UnsafeWrite: If it is not known whether the table has the batch, or if it has a later one.
        """

    @abstractmethod
    def last_batch(self, writer: str) -> int | None:
        """Return the last batch of a writer in the table; None if the table has none, or has forgotten it."""

    @abstractmethod
    def publish(self, published: PublishedWatermark) -> None:
        """Write a watermark of a job into the table, unless the table has it or a higher one."""

    @abstractmethod
    def history(self, version: int | None = None) -> TableHistory:
        """Return the history of the table, from a version on or from the latest one."""

    def _check_order(self, record: AppendRecord, found: int, replayed: bool) -> None:
        """Raise UnsafeWrite if the table has a later batch, or one that no attempt of this batch has written."""
        if found > record.batch_id or (found == record.batch_id and not replayed):
            raise UnsafeWrite(
                f"Table {self.name} has batch {found} of this query, and the checkpoint continues with batch "
                f"{record.batch_id}: an older checkpoint was restored, or the query runs twice. Roll the table back to "
                f"the version before batch {record.batch_id}, or start the query on a new checkpoint and another table."
            )

    def _check_same(self, record: AppendRecord, found: TableCommit | None, assume: Assumption | None) -> None:
        """Raise UnsafeWrite if the table has another batch with the same number."""
        planned = None if found is None else found.planned_ms
        if assume is None and None not in (planned, record.planned_ms) and planned != record.planned_ms:
            raise UnsafeWrite(
                f"Table {self.name} has another batch {record.batch_id} of {record.query}, which Spark planned at "
                "another time: an older checkpoint was restored. Compare the rows. To leave out those of this batch, "
                "call write_once(..., assume='written') for this batch only. To write them, roll the table back to the "
                "version before the batch."
            )

    def _is_written(self, record: AppendRecord, assume: Assumption | None, reason: str) -> bool:
        """Return whether the user says that the table has a batch; raise UnsafeWrite if the user says nothing."""
        if assume is None:
            raise UnsafeWrite(
                f"It is not known whether table {self.name} has batch {record.batch_id} of {record.query}: {reason}. "
                "Compare the rows of the table with those of the batch. If it has them, call "
                "write_once(..., assume='written') for this batch only; else write_once(..., assume='missing')."
            )
        return assume == "written"


class DeltaTable(Table):
    """A table of Delta Lake."""

    def __init__(self, spark: SparkSession, name: str, path: str, is_path: bool) -> None:
        super().__init__(spark, name, path)
        self._is_path = is_path
        self._path = path
        self._quoted = f"delta.`{path.replace('`', '``')}`"

    def _log(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self._path)

    def _snapshot(self) -> Any:
        nothing = self._jvm.scala.Option.empty()
        return self._log().update(False, nothing, nothing)

    def append_once(
        self, df: DataFrame, record: AppendRecord, replayed: bool, assume: Assumption | None = None
    ) -> tuple[bool, int]:
        """Append rows in a transaction of Delta Lake, which refuses a batch that the table has."""
        snapshot, writer = self._snapshot(), f"tidegate/{record.writer}"
        version: int = snapshot.version()
        # The append needs the transactions of this snapshot, too, so that this costs nothing.
        found = snapshot.transactions().get(writer) if version >= 0 else None
        if found is not None and found.isDefined():
            self._check_order(record, found.get(), replayed)
            if found.get() == record.batch_id:
                if assume != "written":
                    self._check_written(record, assume)
                return False, version
        elif replayed and version >= 0 and self._is_forgotten(snapshot, record, assume):
            return False, version
        transaction = {"txnAppId": writer, "txnVersion": record.batch_id}
        self._append(df, {**transaction, "userMetadata": record.user_metadata()})
        version = self._snapshot().version()
        return True, version

    def last_batch(self, writer: str) -> int | None:
        """Return the last batch from the transactions of the table."""
        snapshot = self._snapshot()
        found = snapshot.transactions().get(f"tidegate/{writer}") if snapshot.version() >= 0 else None
        return int(found.get()) if found is not None and found.isDefined() else None

    def _is_forgotten(self, snapshot: Any, record: AppendRecord, assume: Assumption | None) -> bool:
        """Return whether the user says that the table has a batch that it may have forgotten."""
        if not snapshot.metadata().configuration().contains(TRANSACTIONS_EXPIRE):
            return False
        return self._is_written(record, assume, f"the table forgets batches after its {TRANSACTIONS_EXPIRE}")

    def _append(self, df: DataFrame, options: dict[str, Any]) -> None:
        writer = df.write.format("delta").mode("append").options(**options)
        if self._is_path:
            writer.save(self._path)
        else:
            writer.saveAsTable(self.name)

    def _check_written(self, record: AppendRecord, assume: Assumption | None) -> None:
        """Raise UnsafeWrite if the rows of a batch that Delta Lake takes for written are not in the table."""
        entries = self._entries()
        commits = [delta_history([entry]).commits[0] for entry in entries]
        made_by = [each for each in commits if (each.writer, each.batch_id) == (record.writer, record.batch_id)]
        self._check_same(record, next(iter(made_by), None), assume)
        ancestors = {commit.version for commit in delta_history(entries).commits}
        if made_by and not ancestors.intersection(each.version for each in made_by):
            raise UnsafeWrite(
                f"Table {self.name} was restored, to a version before batch {record.batch_id} of {record.query} or to "
                "a time, and Delta Lake takes the batch for written. To write it, append its rows without "
                "write_once(). To leave it out, call write_once(..., assume='written') for this batch."
            )

    def publish(self, published: PublishedWatermark) -> None:
        """Append nothing, with the watermark as the version of a transaction: Delta Lake skips a lower one.

        A property of the table would end appends of other writers at the same time.
        """
        if published.watermark < 0:
            return  # the version of a transaction is 0 or more
        if self._snapshot().version() < 0:
            return  # no batch has created the table
        writer = f"tidegate.watermark/{published.job}/{published.incarnation}"
        nothing = self.spark.createDataFrame([], self.spark.read.format("delta").load(self._path).schema)
        transaction = {"txnAppId": writer, "txnVersion": published.watermark}
        self._append(nothing, {**transaction, "userMetadata": published.user_metadata()})

    def history(self, version: int | None = None) -> TableHistory:
        """Return the history from the commits that the table keeps."""
        if self._snapshot().version() < 0:
            raise InvalidUsage(f"There is no table at {self.name}.")
        return delta_history(self._entries(), version)

    def _entries(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.spark.sql(f"DESCRIBE HISTORY {self._quoted}").collect()]


class IcebergTable(Table):
    """A table of Iceberg in a catalog."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        super().__init__(spark, name, name)
        self.identity = str(self._table().location())
        self._appended: dict[str, int] = {}
        self._seen: int | None = None
        self._published_for: int | None = None

    def _table(self) -> Any:
        loader = self._jvm.org.apache.iceberg.spark.Spark3Util
        table = loader.loadIcebergTable(self.spark._jsparkSession, self.name)
        table.refresh()
        return table

    def _continues(self, table: Any, ancestor: int | None) -> bool:
        """Return whether the current snapshot descends from an ancestor by few commits.

        To read all snapshots takes 50 ms, because Py4J passes a long text slowly.
        """
        snapshot = table.currentSnapshot()
        for _ in range(NEAR):
            if snapshot is None or snapshot.snapshotId() == ancestor:
                return snapshot is not None
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return False

    def append_once(
        self, df: DataFrame, record: AppendRecord, replayed: bool, assume: Assumption | None = None
    ) -> tuple[bool, int]:
        """Search the ancestors of the current snapshot for the batch, and append the rows if none has it."""
        for setting in _WRITE_AUDIT_PUBLISH:
            if self.spark.conf.get(setting, None):
                raise InvalidUsage(
                    f"write_once() needs appends to the current version of {self.name}, and {setting} is set: unset it."
                )
        table = self._table()
        appended, before = self._appended.get(record.writer), table.currentSnapshot()
        if appended is not None and not replayed and self._continues(table, self._seen):
            self._check_order(record, appended, replayed)
        else:
            history = self._history_of(table)
            if self._has(record, history, replayed, assume):
                return False, history.commits[0].version
        writer = df.writeTo(self.name)
        for name, value in record.summary().items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.append()
        self._appended[record.writer] = record.batch_id
        table.refresh()
        version: int = table.currentSnapshot().snapshotId()
        # If the table was rolled back during the append, the next one reads the whole history.
        self._seen = version if before is None or self._continues(table, before.snapshotId()) else None
        return True, version

    def last_batch(self, writer: str) -> int | None:
        """Return the last batch from the ancestors of the current snapshot."""
        found = self.history().latest_of(writer)
        return None if found is None else found.batch_id

    def _has(self, record: AppendRecord, history: TableHistory, replayed: bool, assume: Assumption | None) -> bool:
        """Return whether the table has the batch of a record; raise UnsafeWrite if that is not known."""
        found = history.latest_of(record.writer)
        self._check_not_rolled_back(record, history, found)
        if found is None or found.batch_id is None:
            reason = "earlier snapshots have expired"
            return replayed and history.is_cut and self._is_written(record, assume, reason)
        self._check_order(record, found.batch_id, replayed)
        if found.batch_id < record.batch_id:
            return False
        self._check_same(record, found, assume)
        return True

    def _check_not_rolled_back(self, record: AppendRecord, history: TableHistory, found: TableCommit | None) -> None:
        """Raise UnsafeWrite if the table lacks a batch that this run has appended: the next claim would cover it."""
        appended = self._appended.get(record.writer)
        if appended is None or (found is None and history.is_cut):
            return
        if found is None or found.batch_id is None or found.batch_id < appended:
            raise UnsafeWrite(
                f"Table {self.name} was rolled back while {record.query} ran: it lacks batch {appended}. Stop the "
                "query, and roll the table forward, or start the query on a new checkpoint and another table."
            )

    def publish(self, published: PublishedWatermark) -> None:
        """Write the watermark into properties of the table, which makes no snapshot."""
        history = self.history()
        ancestors = {commit.version for commit in history.commits}
        if self._published_for is not None and self._published_for not in ancestors and not history.is_cut:
            raise UnsafeWrite(f"Table {self.name} was rolled back while the query ran: start the query again.")
        if not history.commits or published.is_passed_by(history.claim(published.job)):
            return
        update = self._table().updateProperties()
        for name, value in published.properties(history.commits[0].version).items():
            update = update.set(name, value)
        update.commit()
        self._published_for = history.commits[0].version

    def history(self, version: int | None = None) -> TableHistory:
        """Return the history from the table's metadata."""
        return self._history_of(self._table(), version)

    def _history_of(self, table: Any, version: int | None = None) -> TableHistory:
        # One call returns all snapshots, also those of a long history.
        metadata = self._jvm.org.apache.iceberg.TableMetadataParser.toJson(table.operations().current())
        return iceberg_history(json.loads(metadata), version)


def table_on(spark: SparkSession, name: str) -> Table:
    """Return the table of a name or path.

    A path is one of Delta Lake. If there is nothing yet, the first append creates the table there.

    Raises:
        InvalidUsage: If there is no such table, it has another format, or the session cannot use it.
    """
    if is_connect(spark):
        raise InvalidUsage(
            "write_once() and publish_watermark() need a classic session: over Spark Connect, Python cannot read the "
            "history of a table from Spark. Use a classic session, or append by MERGE with a key."
        )
    if "/" in name or ":" in name:
        return _delta_at(spark, name)
    if (selector := name.rpartition(".")[2].strip("`")).startswith(_SELECTORS):
        raise InvalidUsage(f"{name} names a part of a table ({selector}): pass the name of the table alone.")
    try:
        exists = spark.catalog.tableExists(name)
    except AnalysisException as error:  # Spark takes an unknown catalog for a namespace
        raise InvalidUsage(f"The session cannot find table {name}: {_first_line(error)} Set its catalog.") from None
    if not exists:
        raise InvalidUsage(
            f"There is no table {name}: correct the name, which is catalog.database.table for a table of Iceberg, "
            "create the table first, or pass the path of a Delta table."
        )
    described = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()}
    form = str(described.get("Provider", "")).lower()
    if form == "iceberg":
        return IcebergTable(spark, name)
    if form == "delta":
        return DeltaTable(spark, name, described["Location"], is_path=False)
    raise InvalidUsage(
        f"Table {name} has the format {form or 'of a view'}: write_once() needs a table of Delta Lake or Iceberg."
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _delta_at(spark: SparkSession, path: str) -> Table:
    jvm: Any = spark._jvm
    try:
        tables = jvm.io.delta.tables.DeltaTable
        is_table = tables.isDeltaTable(spark._jsparkSession, path)
    except TypeError:  # py4j finds a package in place of a class that does not exist
        raise InvalidUsage(
            f"{path} is a path, and this session has no Delta Lake. For an Iceberg table, pass its name in a catalog. "
            "For a Delta table, add the jar of Delta Lake for this version of Spark."
        ) from None
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    # Delta Lake would make a table of a folder with other files without a word.
    if not is_table and files.exists(place) and (files.getFileStatus(place).isFile() or files.listStatus(place)):
        raise InvalidUsage(
            f"{path} has files, and is no table of Delta Lake: pass another path. For an Iceberg table, pass its name "
            "in a catalog."
        )
    return DeltaTable(spark, path, str(files.makeQualified(place).toString()), is_path=True)
