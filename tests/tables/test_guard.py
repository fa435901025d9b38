"""Guarded appends and published watermarks on real tables: what each table knows, and what it cannot know."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.table import StaticTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.lake import FORMS, Lake
from tests.support.waiting import until
from tidegate_spark import Batch, Claim, InvalidUsage, Job, UnsafeWrite, complete_up_to, limiting_lag
from tidegate_spark.claims import AppendRecord, PublishedWatermark
from tidegate_spark.tables import TRANSACTIONS_EXPIRE, Table, table_on
from tidegate_spark.testing import CoordinatorProcess, FileBatches

PLANNED_MS = 1_700_000_000_000


@pytest.fixture(params=FORMS)
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, request.param, tmp_path)


@pytest.fixture
def idle_job(tidegate: CoordinatorProcess) -> Job:
    return tidegate.job(config=limiting_lag(timedelta(seconds=10), idle_timeout=timedelta(seconds=1)))


@pytest.fixture
def table(lake: Lake) -> Table:
    return table_on(lake.spark, lake.name)


def record(batch_id: int, writer: str = "id/on", watermark: int | None = None) -> AppendRecord:
    claim = 100 * batch_id if watermark is None else watermark
    return AppendRecord(writer, batch_id, PLANNED_MS, "flights", "departures", claim, claim - 50, 1)


def append(lake: Lake, table: Table, batch_id: int, replayed: bool = False, **named: Any) -> bool:
    """Append the row of a batch once."""
    row = lake.rows((f"batch {batch_id}", batch_id))
    assume = named.pop("assume", None)
    return table.append_once(row, record(batch_id, **named), replayed, assume)[0]


def batches(lake: Lake) -> list[int]:
    return sorted(row[1] for row in lake.read())


def test_a_batch_is_appended_once(lake: Lake, table: Table) -> None:
    assert append(lake, table, 0)
    assert not append(lake, table, 0, replayed=True)
    assert append(lake, table, 1)
    assert append(lake, table, 1, writer="id/late")
    assert append(lake, table, 1, writer="another id/on"), "another checkpoint is another query"
    assert not append(lake, table, 1, replayed=True)
    with pytest.raises(UnsafeWrite, match="or the query runs twice"):
        append(lake, table, 1)
    assert append(lake, table, 2, writer="id/on/US")
    assert append(lake, table, 2, writer="id/on/us"), "Spark converts the names of properties to lower case"
    assert not append(lake, table, 2, writer="id/on/US", replayed=True)
    assert batches(lake) == [0, 1, 1, 1, 2, 2]


def test_another_batch_with_the_same_number_is_an_error(lake: Lake, table: Table) -> None:
    """A checkpoint was restored that lacks one batch, which Spark plans again with other rows."""
    append(lake, table, 5)
    other = replace(record(5), planned_ms=PLANNED_MS + 1)
    with pytest.raises(UnsafeWrite, match="has another batch 5 of departures, which Spark planned at another time"):
        table.append_once(lake.rows(("other rows", 5)), other, replayed=True)
    assert not table.append_once(lake.rows(("other rows", 5)), other, True, "written")[0]
    assert batches(lake) == [5]


def test_the_version_has_the_rows(lake: Lake, table: Table) -> None:
    appended, first = table.append_once(lake.rows(("a", 1)), record(0), False)
    assert appended
    assert lake.read(first) == [("a", 1)]
    lake.append(lake.rows(("another", 2)))
    appended, second = table.append_once(lake.rows(("a", 1)), record(0), True)
    assert not appended
    assert ("a", 1) in lake.read(second)


def test_a_replay_beside_another_writer_and_a_compaction(lake: Lake, table: Table) -> None:
    append(lake, table, 0)
    append(lake, table, 1)
    lake.append(lake.rows(("another", 9)))
    lake.compact()
    lake.append(lake.rows(("another", 9)))
    assert not append(lake, table, 1, replayed=True)
    assert append(lake, table, 2)
    assert batches(lake) == [0, 1, 2, 9, 9]


def test_a_later_batch_in_the_table_is_an_error(lake: Lake, table: Table) -> None:
    append(lake, table, 5)
    with pytest.raises(UnsafeWrite, match=f"{lake.name} has batch 5 .* continues with batch 4: an older checkpoint"):
        append(lake, table, 4)
    assert batches(lake) == [5]


def test_a_rollback_takes_the_batch_back(lake: Lake, table: Table) -> None:
    append(lake, table, 0)
    before = lake.versions()[-1]
    append(lake, table, 1)
    lake.roll_back(before)
    if lake.form == "iceberg":
        table = table_on(lake.spark, lake.name)  # the driver was killed
        assert append(lake, table, 1, replayed=True)
        assert batches(lake) == [0, 1]
        return
    # Delta Lake keeps the transaction, and would leave the batch out.
    with pytest.raises(UnsafeWrite, match="was restored, to a version before batch 1"):
        append(lake, table, 1, replayed=True)
    assert not append(lake, table, 1, replayed=True, assume="written")
    assert append(lake, table, 2)
    assert batches(lake) == [0, 2]


def test_a_rollback_beside_the_query_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise the next claim would cover the batches that the table lacks."""
    lake = Lake(spark, "iceberg", tmp_path)
    table = table_on(spark, lake.name)
    append(lake, table, 0)
    before = lake.versions()[-1]
    append(lake, table, 1)
    table.publish(PublishedWatermark("flights", 1, 400))
    lake.roll_back(before)
    with pytest.raises(UnsafeWrite, match="was rolled back while departures ran: it lacks batch 1"):
        append(lake, table, 2)
    with pytest.raises(UnsafeWrite, match="was rolled back while the query ran"):
        table.publish(PublishedWatermark("flights", 1, 500))
    assert batches(lake) == [0]


def test_a_rollback_to_the_batch_keeps_it(lake: Lake, table: Table) -> None:
    append(lake, table, 0)
    append(lake, table, 1)
    with_batch = lake.versions()[-1]
    lake.append(lake.rows(("another", 9)))
    lake.roll_back(with_batch)
    assert not append(lake, table, 1, replayed=True)
    assert batches(lake) == [0, 1]


def forget(lake: Lake) -> None:
    """Let the table forget the batches that it has."""
    if lake.form == "iceberg":
        lake.append(lake.rows(("another", 9)))
        lake.expire()
        return
    lake.spark.sql(f"ALTER TABLE {lake.sql} SET TBLPROPERTIES ('{TRANSACTIONS_EXPIRE}' = 'interval 1 seconds')")
    time.sleep(2)
    lake.append(lake.rows(("another", 9)))


def test_a_replay_is_refused_if_the_table_has_forgotten_batches(lake: Lake, table: Table) -> None:
    append(lake, table, 7)
    forget(lake)
    with pytest.raises(UnsafeWrite, match=f"not known whether table {lake.name} has batch 7 of departures"):
        append(lake, table, 7, replayed=True)
    assert not append(lake, table, 7, replayed=True, assume="written")
    assert batches(lake) == [7, 9]
    assert append(lake, table, 8), "a first attempt was never written"
    assert append(lake, table, 9, replayed=lake.form == "iceberg"), "the history reaches back to the batch before"
    assert batches(lake) == [7, 8, 9, 9]


def test_a_batch_that_the_user_takes_for_missing_is_written(lake: Lake, table: Table) -> None:
    append(lake, table, 7)
    forget(lake)
    assert append(lake, table, 8, replayed=True, assume="missing")
    assert batches(lake) == [7, 8, 9]


def test_appends_to_an_iceberg_table_are_not_staged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, "iceberg", tmp_path)
    spark.conf.set("spark.wap.id", "audit")
    try:
        with pytest.raises(InvalidUsage, match=r"spark\.wap\.id is set: unset it"):
            append(lake, table_on(spark, lake.name), 0)
    finally:
        spark.conf.unset("spark.wap.id")


# Claims


def of_packages(lake: Lake, version: int | None = None) -> Claim | None:
    """Return the claim as a reader without Spark reads it."""
    if lake.form == "delta":
        return complete_up_to(deltalake.DeltaTable(lake.name, version=version))
    latest = lake.metadata()
    found = complete_up_to(StaticTable.from_metadata(str(latest)), version=version)
    for path in (lake.location, latest, f"file://{lake.location}"):
        assert complete_up_to(path, version=version) == found
    return found


def claims(lake: Lake, version: int | None = None) -> Claim | None:
    """Return the claim of a version; all readers must agree."""
    found = complete_up_to(lake.name, version=version)
    assert of_packages(lake, version) == found
    assert table_on(lake.spark, lake.name).history(version).claim() == found
    return found


def test_each_version_has_a_claim(lake: Lake, table: Table) -> None:
    assert claims(lake) is None
    for each in range(3):
        append(lake, table, each)
    table.append_once(lake.rows(), AppendRecord("id/late", 2, None, "flights", "departures", None, None, 1), False)
    lake.compact()
    current = claims(lake)
    assert current is not None
    assert (current.watermark, current.frames_until, current.source) == (200, 150, "rows")
    assert current.version == lake.versions()[-1]
    found = [claims(lake, version) for version in lake.versions()]
    watermarks = [each.watermark for each in found if each is not None]
    assert watermarks[:3] == [0, 100, 200]
    assert set(watermarks[3:]) == {200}


def test_a_claim_goes_back_with_the_table(lake: Lake, table: Table) -> None:
    append(lake, table, 0)
    before = lake.versions()[-1]
    append(lake, table, 1)
    table.publish(PublishedWatermark("flights", 1, 400))
    claim = claims(lake)
    assert claim is not None and claim.watermark == 400
    lake.roll_back(before)
    claim = claims(lake)
    assert claim is not None
    assert (claim.watermark, claim.source) == (0, "rows")


def test_a_published_watermark_only_rises(lake: Lake, table: Table) -> None:
    append(lake, table, 3)
    of_rows = len(lake.versions())
    seen = []
    for watermark, incarnation in ((200, 1), (350, 1), (340, 1), (350, 1), (360, 1), (10, 2), (5, 2)):
        table.publish(PublishedWatermark("flights", incarnation, watermark))
        claim = claims(lake)
        assert claim is not None
        seen.append((claim.watermark, claim.incarnation))
    assert seen == [(300, 1), (350, 1), (350, 1), (350, 1), (360, 1), (10, 2), (10, 2)]
    assert batches(lake) == [3]
    added = len(lake.versions()) - of_rows
    assert added == (0 if lake.form == "iceberg" else 4), "Iceberg needs no version for a property"


def test_an_empty_table_has_no_claim(lake: Lake, table: Table) -> None:
    if lake.form == "iceberg":
        lake.spark.sql(f"DROP TABLE {lake.name}")
        lake.spark.sql(f"CREATE TABLE {lake.name} (k string, t long) USING iceberg")
        table.publish(PublishedWatermark("flights", 1, 100))
        assert claims(lake) is None, "there is no version yet"
    else:
        table.publish(PublishedWatermark("flights", 1, -100))
        assert claims(lake) is None, "a version of a transaction is 0 or more"


def test_appends_and_watermarks_beside_other_writers(lake: Lake, table: Table) -> None:
    """Neither ends another writer, or another writer it."""
    append(lake, table, 0)
    failed: list[Exception] = []

    def repeat(action: Callable[[int], Any]) -> None:
        for each in range(1, 6):
            try:
                action(each)
            except Exception as error:  # noqa: BLE001 - of any library
                failed.append(error)

    others = [
        lambda each: table_on(lake.spark, lake.name).publish(PublishedWatermark("flights", 1, 1000 * each)),
        lambda each: lake.append(lake.rows(("another", 99))),
    ]
    threads = [threading.Thread(target=repeat, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    repeat(lambda each: append(lake, table, each))
    for thread in threads:
        thread.join()
    assert failed == []
    assert batches(lake) == [0, 1, 2, 3, 4, 5, *[99] * 5]
    claim = claims(lake)
    assert claim is not None
    assert claim.watermark == 5000


# Which table


def test_a_path_becomes_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    table, rows = table_on(spark, path), spark.createDataFrame([("a", 0)], "k string, t long")
    table.publish(PublishedWatermark("flights", 1, 5))
    assert table.append_once(rows, record(0), False)[0]
    assert not table_on(spark, f"file:{path}").append_once(rows, record(0), True)[0]
    assert spark.read.format("delta").load(path).count() == 1
    assert complete_up_to(path) == complete_up_to(f"file://{path}")


def test_a_delta_table_in_a_catalog(spark: SparkSession) -> None:
    spark.sql("DROP TABLE IF EXISTS guarded")
    spark.sql("CREATE TABLE guarded (k string, t long) USING delta")
    try:
        rows = spark.createDataFrame([("a", 0)], "k string, t long")
        assert table_on(spark, "guarded").append_once(rows, record(0), False)[0]
        assert not table_on(spark, "default.guarded").append_once(rows, record(0), True)[0]
        table_on(spark, "spark_catalog.default.guarded").publish(PublishedWatermark("flights", 1, 70))
        assert spark.table("guarded").count() == 1
        claim = complete_up_to("guarded")
        assert claim is not None and claim.watermark == 70
    finally:
        spark.sql("DROP TABLE guarded")


def test_tables_that_cannot_be_guarded(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match=r"There is no table ice\.db\.missing: correct the name"):
        table_on(spark, "ice.db.missing")
    for selector in ("branch_dev", "tag_v1", "snapshot_id_5", "at_timestamp_7"):
        with pytest.raises(InvalidUsage, match=rf"names a part of a table \({selector}\)"):
            table_on(spark, f"ice.db.hours.{selector}")
    spark.sql("CREATE TABLE IF NOT EXISTS plain (k string) USING parquet")
    with pytest.raises(InvalidUsage, match="Table plain has the format parquet"):
        table_on(spark, "plain")
    spark.sql("DROP TABLE plain")
    spark.range(1).write.parquet(str(tmp_path / "files"))
    with pytest.raises(InvalidUsage, match="has files, and is no table of Delta Lake"):
        table_on(spark, str(tmp_path / "files"))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidUsage, match="has files, and is no table of Delta Lake"):
        table_on(spark, str(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    table_on(spark, str(tmp_path / "empty"))


def test_mistakes_of_a_reader(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="not 5"):
        complete_up_to(5)
    with pytest.raises(InvalidUsage, match=r"has no (version|snapshot) 12345678"):
        complete_up_to(lake.name, version=12345678)
    for path in ("/nowhere/table", "./nowhere"):
        with pytest.raises(InvalidUsage, match=r"There is no table at .*/nowhere"):
            complete_up_to(path)
    broken = tmp_path / "broken" / "_delta_log"
    broken.mkdir(parents=True)
    (broken / f"{0:020}.json").write_text("{")
    with pytest.raises(InvalidUsage, match="cannot be read: ") as refused:
        complete_up_to(broken.parent)
    assert "\n" not in str(refused.value)


# The calls of a query


def test_arguments_of_publish_watermark(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path, checkpoint: str
) -> None:
    source = FileBatches(tmp_path / "input", "k string, t long")
    stream = tidegate.job().stream(source.stream(spark), event_time="t", substream="k")
    for table in ("", 5, None):
        with pytest.raises(InvalidUsage, match=r"publish_watermark\(\) takes the name of a table or a path"):
            stream.publish_watermark(table)  # type: ignore[arg-type]
    for every in (5, timedelta(seconds=-1)):
        with pytest.raises(InvalidUsage, match="every must be a timedelta, 0 or more"):
            stream.publish_watermark("lake/t", every=every)  # type: ignore[arg-type]
    unknown = stream.foreach_batch(lambda df, batch_id: None).publish_watermark("ice.db.missing")
    with pytest.raises(InvalidUsage, match=r"There is no table ice\.db\.missing"):
        unknown.start(queryName="q", checkpointLocation=checkpoint)


def other_name(lake: Lake) -> str:
    """Return another name of the same table."""
    return f"file:{lake.name}/" if lake.form == "delta" else lake.name.replace("ice.", "`ice`.")


def published(lake: Lake) -> int | None:
    claim = complete_up_to(lake.name)
    return None if claim is None else claim.watermark


def test_a_part_does_not_repeat_rows_without_one(
    lake: Lake, tidegate: CoordinatorProcess, tmp_path: Path, checkpoint: str
) -> None:
    """A function fails after an append without a part, and its user names the parts then."""
    source = FileBatches(tmp_path / "input", "k string, t long")
    job = tidegate.job(config=limiting_lag(timedelta(seconds=10)))
    source.add({"k": "a", "t": 100_000}, {"k": "b", "t": 20_000})

    def run(*parts: tuple[str, str | None]) -> None:
        def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
            for k, part in parts:
                batch.write_once(df.filter(f"k = '{k}'"), lake.name, part=part)

        stream = job.stream(source.stream(lake.spark), event_time="t", substream="k").foreach_batch(write)
        query = stream.trigger(availableNow=True).start(queryName="q", checkpointLocation=checkpoint)
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="Leave the first call as it is"):
        run(("a", None), ("b", None))
    with pytest.raises(StreamingQueryException, match="it may write them twice"):
        run(("a", "a"), ("b", "b"))
    run(("a", None), ("b", "b"))
    assert lake.read() == [("a", 100_000), ("b", 20_000)]


def test_a_query_appends_parts_and_publishes_its_watermark(
    lake: Lake, idle_job: Job, tmp_path: Path, checkpoint: str
) -> None:
    """The watermark also moves after the last batch, when a silent substream becomes idle."""
    source, errors = FileBatches(tmp_path / "input", "k string, t long"), []
    source.add({"k": "a", "t": 100_000}, {"k": "b", "t": 20_000})

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        assert batch.write_once(df.filter("k = 'a'"), lake.name, part="a")
        for name in (lake.name, other_name(lake)):
            try:
                batch.write_once(df, name, part="a")
            except InvalidUsage as error:
                errors.append(str(error))
        assert batch.write_once(df.filter("k = 'b'"), lake.name, part="b")

    stream = idle_job.stream(source.stream(lake.spark), event_time="t", substream="k").foreach_batch(write)
    stream = stream.publish_watermark(lake.name, every=timedelta(0)).tuning(heartbeat_ms=100)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        until(lambda: published(lake) == 90_000, "the watermark is published", 120)
    finally:
        query.stop()
    assert len(errors) == 2
    assert all("a second append needs a name of its own" in error for error in errors)
    assert lake.read() == [("a", 100_000), ("b", 20_000)]
    (told,) = idle_job.queries()
    assert [each["table"] for each in told["outputs"]] == [lake.name]
