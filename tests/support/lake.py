"""Tables of Delta Lake and Iceberg for tests: made, changed and read without the client."""

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame, SparkSession

FORMS = ("delta", "iceberg")


class Lake:
    """A table of a format, with the columns of a schema.

    Attributes:
        spark: The session.
        form: The format: ``delta`` or ``iceberg``.
        name: The table: a path, or a name in the catalog ``ice``.
    """

    def __init__(self, spark: SparkSession, form: str, directory: Path, schema: str = "k string, t long") -> None:
        self.spark, self.form, self.schema = spark, form, schema
        unique = secrets.token_hex(4)
        self.name = str(directory / f"table-{unique}") if form == "delta" else f"ice.db.t{unique}"
        nothing = self.rows()
        if form == "delta":
            nothing.write.format("delta").save(self.name)
        else:
            nothing.writeTo(self.name).using("iceberg").create()

    @property
    def sql(self) -> str:
        """The table in a statement."""
        return f"delta.`{self.name}`" if self.form == "delta" else self.name

    def rows(self, *values: tuple[Any, ...]) -> DataFrame:
        return self.spark.createDataFrame([*values], self.schema)

    def _refresh(self) -> None:
        """Forget what the session knows of the table, which another session or process may have written."""
        if self.form == "iceberg":
            self.spark.catalog.refreshTable(self.name)

    def append(self, df: DataFrame) -> None:
        """Append rows as another writer does."""
        if self.form == "delta":
            df.write.format("delta").mode("append").save(self.name)
        else:
            df.writeTo(self.name).append()

    @property
    def location(self) -> Path:
        """The folder of the table."""
        if self.form == "delta":
            return Path(self.name)
        warehouse = str(self.spark.conf.get("spark.sql.catalog.ice.warehouse"))
        return Path(warehouse, *self.name.split(".")[1:])

    def metadata(self) -> Path:
        """Return the latest file of metadata of an Iceberg table."""
        files = (self.location / "metadata").glob("v*.metadata.json")
        return max(files, key=lambda file: int(file.name[1:].partition(".")[0]))

    def read(self, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows, sorted: those of a version by a reader without Spark, which takes less time."""
        if version is None:
            self._refresh()
            found: Iterable[Any] = self.spark.read.format(self.form).load(self.name).collect()
            return sorted(map(tuple, found), key=str)
        if self.form == "delta":
            rows = delta_rows(self.name, version)
        else:
            rows = StaticTable.from_metadata(str(self.metadata())).scan(snapshot_id=version).to_arrow().to_pylist()
        columns = [field.partition(" ")[0] for field in self.schema.split(", ")]
        return sorted((tuple(row[column] for column in columns) for row in rows), key=str)

    def versions(self) -> list[int]:
        """Return the versions, first one first."""
        self._refresh()
        if self.form == "delta":
            listed = self.spark.sql(f"DESCRIBE HISTORY {self.sql}").orderBy("version")
            return [row.version for row in listed.collect()]
        listed = self.spark.table(f"{self.name}.snapshots").orderBy("committed_at")
        return [row.snapshot_id for row in listed.collect()]

    def compact(self) -> None:
        """Write the rows into one file."""
        if self.form == "delta":
            self.spark.sql(f"OPTIMIZE {self.sql}")
        else:
            rewrite = "options => map('rewrite-all', 'true')"
            self.spark.sql(f"CALL ice.system.rewrite_data_files(table => '{self.name}', {rewrite})")

    def roll_back(self, version: int) -> None:
        if self.form == "delta":
            self.spark.sql(f"RESTORE TABLE {self.sql} TO VERSION AS OF {version}")
        else:
            self.spark.sql(f"CALL ice.system.rollback_to_snapshot('{self.name}', {version})")

    def expire(self) -> None:
        """Remove all versions but the current one from an Iceberg table."""
        assert self.form == "iceberg"
        expire = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
        self.spark.sql(f"CALL ice.system.expire_snapshots(table => '{self.name}', {expire})")


def delta_rows(path: str, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table of Delta Lake by a reader without Spark: those of a version, or the latest ones.

    By default, ``to_pyarrow_table`` calls Python from threads of Arrow, and about one of three processes that end soon
    after it aborts (deltalake 1.6, pyarrow 26). The file system of Arrow calls no Python.
    """
    files = SubTreeFileSystem(path, LocalFileSystem())
    rows: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table(filesystem=files).to_pylist()
    return rows
