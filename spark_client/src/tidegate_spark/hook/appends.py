"""The guarded appends of the user's functions, which ``Batch.write_once`` makes."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame

from tidegate_spark.batch import Append, Assumption, Batch
from tidegate_spark.claims import AppendRecord
from tidegate_spark.errors import InvalidUsage, UnsafeWrite
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.tables import Table, table_on

OutputName = Literal["on", "late", "windows"]
"""What a function writes: rows on time, late rows, or windows."""


@dataclass
class TableAppends:
    """The guarded appends of one run of a query."""

    session: DriverSession
    _tables: dict[str, Table] = field(default_factory=dict)
    """The tables that the run has written, by name: to find the format of a table takes a tenth of a second."""

    def during(self, batch: Batch, output: OutputName) -> Batch:
        """Return a batch for one call of a function, which can append to tables."""
        append: Append = partial(self._append, output, set())
        return replace(batch, append=append)

    def _append(
        self,
        output: OutputName,
        done: set[tuple[str, str | None]],
        batch: Batch,
        df: DataFrame,
        name: str,
        part: str | None,
        assume: Assumption | None,
    ) -> bool:
        table = self._tables.get(name) or table_on(df.sparkSession, name)
        if (table.identity, part) in done:
            raise InvalidUsage(
                f"The function has appended to {name} in this batch{f' as {part!r}' if part else ''}, and these rows "
                "are in the table: a second append needs a name of its own. Leave the first call as it is, and pass "
                "write_once(..., part='...') to this one."
            )
        whole = f"{self.session.checkpoint.query_id}/{output}"
        if batch.replayed and part is not None and assume is None and (table.identity, None) not in done:
            self._check_not_whole(table, whole, batch.batch_id, part)
        record = AppendRecord(
            whole if part is None else f"{whole}/{part}",
            batch.batch_id,
            self.session.checkpoint.planned_ms(batch.batch_id),
            batch.job,
            batch.query,
            _claimed(batch, output, part),
            batch.unfinished_frame,
            batch.incarnation,
        )
        appended, version = table.append_once(df, record, batch.replayed, assume)
        self._tables[name] = table
        done.add((table.identity, part))
        self.session.run(self.session.calls.wrote_table(name, str(version)))
        return appended

    def _check_not_whole(self, table: Table, whole: str, batch_id: int, part: str) -> None:
        """Raise UnsafeWrite if the table has rows of the batch without a part: the program has changed."""
        if table.last_batch(whole) == batch_id:
            raise UnsafeWrite(
                f"Table {table.name} has rows of batch {batch_id} that were appended without part, and this append is "
                f"the part {part!r}: it may write them twice. Append first without part, as in the attempt before. Or "
                "compare the rows, and pass assume='written' or assume='missing' for this batch."
            )


def _claimed(batch: Batch, output: OutputName, part: str | None) -> int | None:
    """Return the watermark that an append may claim; None if it may claim none.

    Late rows are below the watermark. A part of the windows of a batch is not all of them. Rows of a batch that
    continues without the coordinator are on time from its pinned watermark on, which may be below the job's.
    """
    if output == "late" or (output == "windows" and part is not None):
        return None
    if output == "windows":
        return batch.job_watermark
    if batch.job_watermark is None or batch.watermark is None:
        return None
    return min(batch.job_watermark, batch.watermark)
