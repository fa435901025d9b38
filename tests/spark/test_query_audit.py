"""The audit counts exactly the rows that are missing from the output of real queries, from their checkpoints."""

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from tests.support.guides import FILES
from tests.support.runs import environment
from tidegate_spark import Audit, InvalidUsage, audit, audit_input, limiting_lag
from tidegate_spark.auditing import command
from tidegate_spark.auditing.report import document, html, text
from tidegate_spark.auditing.rows import Window
from tidegate_spark.spark_session import setting
from tidegate_spark.testing import FileBatches

DELAY, WINDOW = "20 seconds", timedelta(seconds=20)
BASE = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = "t timestamp, k string, number long"
JUDGED = {"count": "window", "hopping": "window", "dedup": "row", "within": "row"}


class Input:
    """Batches of rows of three substreams, each further behind the others."""

    def __init__(self, directory: Path, seed: int, skew: int = 25) -> None:
        self.skew = skew
        self.files, self.random = FileBatches(directory, SCHEMA), random.Random(seed)  # noqa: S311 - no secret
        self.number = self.latest = 0

    def add(self, batches: int, rows: int = 12) -> None:
        for _ in range(batches):
            added: list[dict[str, Any]] = []
            for _ in range(rows):
                self.latest += self.random.choice((0, 0, 1, 1, 2, 7))
                k = self.random.randrange(3)
                seconds = max(0, self.latest - self.skew * k - self.random.randrange(30))
                at = BASE + timedelta(seconds=seconds, milliseconds=self.random.choice((0, 0, 1, 500, 999)))
                added.append({"t": at.isoformat(), "k": "abc"[k], "number": self.number})
                self.number += 1
            self.files.add(*added)


def query_of(kind: str, rows: DataFrame, delay: str = DELAY) -> DataFrame:
    """Return a query whose output says how many rows it has kept."""
    rows = rows.withWatermark("t", delay)
    match kind:
        case "count":
            return rows.groupBy(F.window("t", "20 seconds"), "k").count()
        case "hopping":
            return rows.groupBy(F.window("t", "20 seconds", "10 seconds", "3 seconds"), "k").count()
        case "dedup":
            return rows.dropDuplicates(["number", "t"])
        case _:
            return rows.dropDuplicatesWithinWatermark(["number"])


def audited(spark: SparkSession, checkpoint: Path, **arguments: Any) -> Audit:
    """Audit a query on the files of an input, whose times are text."""
    reader = spark.read.schema(SCHEMA).format("json")
    return audit(spark, str(checkpoint), **{"event_time": "t", "substream": "k", "reader": reader, **arguments})


class Kept:
    """Counts the rows that a query has kept: the last count of each window, or all rows."""

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}
        self.rows = 0

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        if "window" in df.columns:
            for row in df.collect():
                self.counts[row.window.start, row.k] = row["count"]
        else:
            self.rows += df.count()

    def total(self) -> int:
        return self.rows + sum(self.counts.values())


def run(df: DataFrame, kept: Kept, checkpoint: Path, mode: str = "update") -> int:
    """Run a query to the end of its input; return Spark's number of dropped rows."""
    query = (
        df.writeStream.outputMode(mode)
        .foreachBatch(kept)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(each["numRowsDroppedByWatermark"] for p in query.recentProgress for each in p["stateOperators"])


@pytest.fixture(params=[None, 3], ids=["whole log", "short log"])
def kept_batches(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[int | None]:
    """Have Spark keep all batches in its log, or the last three."""
    with setting(spark, "spark.sql.streaming.minBatchesToRetain", str(request.param or 100)):
        yield request.param


@pytest.mark.parametrize("kind", JUDGED)
def test_the_audit_counts_what_the_output_lacks(
    spark: SparkSession, tmp_path: Path, kind: str, kept_batches: int | None
) -> None:
    given, kept, checkpoint = Input(tmp_path / "input", 7), Kept(), tmp_path / "checkpoint"
    for _ in range(2):  # two runs
        given.add(8)
        run(query_of(kind, given.files.stream(spark)), kept, checkpoint)
    more = {"slide": timedelta(seconds=10), "window_start": timedelta(seconds=3)} if kind == "hopping" else {}
    window = WINDOW if JUDGED[kind] == "window" else None
    found = audited(spark, checkpoint, window=window, **more)
    assert found.judged == JUDGED[kind]
    assert (found.differences, found.delays_ms) == ((), (20_000,))
    copies = 2 if kind == "hopping" else 1
    reads_state = int(spark.version.partition(".")[0]) >= 4
    assert found.windows_are_known == (window is not None and reads_state)
    if kind == "hopping" and reads_state:
        with pytest.raises(InvalidUsage, match="has windows of 0:00:20 that start at 0:00:03, 0:00:13"):
            audited(spark, checkpoint)
    total, missing = found.losses.total, copies * given.number - kept.total()
    assert total.rows == copies * given.number
    assert missing > 20
    if kept_batches is None:
        assert total.least == total.most == missing
    else:
        assert total.least <= missing <= total.most
        assert sum(batch.is_logged for batch in found.batches) < len(found.batches)
    by_substream = {name: loss.most for (_, name), loss in found.losses.by_substream.items()}
    assert by_substream["c"] > by_substream["a"]
    assert sum(by_substream.values()) == total.most


@pytest.mark.parametrize("behind", ["left", "right"])
def test_a_join_loses_rows_of_each_side(spark: SparkSession, tmp_path: Path, behind: str) -> None:
    """A pair is missing from the output if the row of one side is late. The other side comes at once, and far ahead."""
    given, ahead = Input(tmp_path / "given", 7), FileBatches(tmp_path / "ahead", SCHEMA)
    given.add(8)
    ahead.add(*({"t": "2013-01-02T00:00:00Z", "k": "a", "number": number} for number in range(given.number)))
    kept, checkpoint = Kept(), tmp_path / "checkpoint"
    first = given.files.stream(spark).withWatermark("t", DELAY)
    second = ahead.stream(spark).withWatermark("t", "0 seconds").select(F.col("t").alias("t2"), F.col("number"))
    sides = (first, second) if behind == "left" else (second, first)
    run(sides[0].join(sides[1], "number"), kept, checkpoint, "append")
    event_time: list[str | None] = ["t", "t"]
    delay = [timedelta(seconds=20), timedelta(0)]
    place = 0 if behind == "left" else 1
    found = audited(spark, checkpoint, event_time=event_time, delay=delay if place == 0 else delay[::-1])
    assert found.operator is not None and found.operator.name in ("symmetricHashJoin", "")
    assert (found.judged, found.differences) == ("row", ())
    by_source = dict.fromkeys((0, 1), 0)
    for (source, _), loss in found.losses.by_substream.items():
        by_source[source] += loss.most
    assert by_source == {place: given.number - kept.total(), 1 - place: 0}
    assert by_source[place] > 10
    swapped = audited(spark, checkpoint, event_time=event_time, delay=delay[::-1] if place == 0 else delay)
    assert swapped.differences
    # Without a watermark, the other side is never late.
    event_time[1 - place] = None
    assert audited(spark, checkpoint, event_time=event_time, delay=delay[0]).losses.total.rows == given.number


def test_batches_without_rows(spark: SparkSession, tmp_path: Path, kept_batches: int | None) -> None:
    """A query that waits for its input runs a batch without rows whenever its watermark has moved."""
    given, kept, checkpoint = Input(tmp_path / "input", 11), Kept(), tmp_path / "checkpoint"
    batches = 0
    for _ in range(2):
        query = (
            query_of("count", given.files.stream(spark))
            .writeStream.outputMode("update")
            .foreachBatch(kept)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            for _ in range(4):
                given.add(1)
                query.processAllAvailable()
        finally:
            query.stop()
        batches += len(query.recentProgress)
    found, missing = audited(spark, checkpoint, window=WINDOW), given.number - kept.total()
    assert found.differences == ()
    assert found.losses.total.least <= missing <= found.losses.total.most
    assert missing > 0
    if kept_batches is None:
        assert found.losses.total.least == found.losses.total.most
        assert sum(batch.batch_id is not None for batch in found.batches) > 8


def test_transform_with_state(spark: SparkSession, tmp_path: Path) -> None:
    streaming = pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="needs Spark 4")
    pandas = pytest.importorskip("pandas")

    base: Any = streaming.StatefulProcessor

    class Passing(base):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            """Keep no state."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield pandas.DataFrame({"number": [number for frame in rows for number in frame["number"]]})

        def close(self) -> None:
            """Release nothing."""

    given, kept, checkpoint = Input(tmp_path / "input", 7), Kept(), tmp_path / "checkpoint"
    given.add(8)
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with setting(spark, "spark.sql.streaming.stateStore.providerClass", store):
        rows = given.files.stream(spark).withWatermark("t", DELAY).groupBy("k")
        run(rows.transformWithStateInPandas(Passing(), "number long", "Update", "EventTime"), kept, checkpoint)
    found = audited(spark, checkpoint)
    assert (found.judged, found.differences, found.delays_ms) == ("row", (), (20_000,))
    assert found.losses.total.least == found.losses.total.most == given.number - kept.total() > 10


def test_lost_rows_and_sparks_own_number(spark: SparkSession, tmp_path: Path) -> None:
    """Examples are shown on demand only."""
    given, checkpoint = Input(tmp_path / "input", 7), tmp_path / "checkpoint"
    given.add(8)
    query = query_of("dedup", given.files.stream(spark)).writeStream.foreachBatch(Kept())
    started = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    started.awaitTermination()
    progress = started.recentProgress
    found = audited(spark, checkpoint, examples=5, progress=progress)
    assert found.dropped == (found.losses.total.most, len(progress))
    assert len(found.examples) == 5
    for row in found.examples:
        assert set(row) == {"t", "k", "number", "watermark"}
        assert BASE <= row["t"] <= row["watermark"] < BASE + timedelta(hours=1)
    shown = text(found)
    assert shown.count("lost: t=") == 5
    assert f"numRowsDroppedByWatermark says {found.losses.total.most:,} rows" in shown.replace("\n", " ")
    assert html(found).count("<td>") > 5
    assert audited(spark, checkpoint).examples == ()


def test_spark_counts_fewer_rows_than_it_drops(spark: SparkSession, tmp_path: Path) -> None:
    given, kept, checkpoint = Input(tmp_path / "input", 3, skew=200), Kept(), tmp_path / "checkpoint"
    given.add(6, rows=60)
    dropped = run(query_of("count", given.files.stream(spark)), kept, checkpoint)
    lost = audited(spark, checkpoint, window=WINDOW).losses.total.most
    assert lost == given.number - kept.total() > dropped > 0


@pytest.mark.parametrize("is_shared", [False, True], ids=["each", "union"])
@pytest.mark.parametrize("policy", ["min", "max"])
def test_several_sources(spark: SparkSession, tmp_path: Path, policy: str, is_shared: bool) -> None:
    """Each run forgets the watermarks of single sources, and the minimum over them then stands still."""
    fast, slow = Input(tmp_path / "fast", 1), Input(tmp_path / "slow", 2)
    slow.latest, slow.number = -60, 10_000
    kept, checkpoint = Kept(), tmp_path / "checkpoint"
    with setting(spark, "spark.sql.streaming.multipleWatermarkPolicy", policy):
        for _ in range(2):
            fast.add(5)
            slow.add(4)
            streams = [each.files.stream(spark) for each in (fast, slow)]
            if is_shared:
                rows = streams[0].unionByName(streams[1]).withWatermark("t", DELAY)
            else:
                rows = streams[0].withWatermark("t", DELAY).unionByName(streams[1].withWatermark("t", DELAY))
            run(rows.groupBy(F.window("t", "20 seconds"), "k").count(), kept, checkpoint)
    found = audited(spark, checkpoint, substream=["concat('fast', k)", "concat('slow', k)"], window=WINDOW)
    rows_given = fast.number + slow.number - 10_000
    assert (found.differences, found.losses.total.rows) == ((), rows_given)
    assert found.losses.total.least == found.losses.total.most == rows_given - kept.total()
    if policy == "max":
        assert found.losses.total.most > 0


@pytest.mark.parametrize("kind", ["count", "hopping", "dedup"])
def test_a_longer_delay_loses_what_the_audit_says(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Spark runs the same batches with each delay. Rows that are judged one by one count by the minute in the audit."""
    given, kept, checkpoint = Input(tmp_path / "input", 7), Kept(), tmp_path / "checkpoint"
    given.add(16)
    run(query_of(kind, given.files.stream(spark)), kept, checkpoint)
    more = {"slide": timedelta(seconds=10), "window_start": timedelta(seconds=3)} if kind == "hopping" else {}
    copies = 2 if kind == "hopping" else 1
    window = WINDOW if JUDGED[kind] == "window" else None
    found = audited(spark, checkpoint, window=window, targets=(0.8, 0.97, 1), **more)
    delays = [20_000 + (each.lag_ms or 0) for each in found.in_spark]
    assert delays == sorted(delays)
    assert delays[-1] > delays[0] == 20_000
    for number, (under, delay_ms) in enumerate(zip(found.in_spark, delays, strict=True)):
        kept = Kept()
        query = query_of(kind, given.files.stream(spark), f"{delay_ms} milliseconds")
        run(query, kept, tmp_path / f"checkpoint-{number}")
        lost = copies * given.number - kept.total()
        assert under.lost <= (1 - (under.target or 0)) * under.rows
        if kind == "dedup":
            assert lost <= under.lost
        else:
            assert lost == under.lost
    assert found.in_spark[-1].lost == 0 < found.in_spark[0].lost


def test_the_report(spark: SparkSession, tmp_path: Path) -> None:
    given, checkpoint = Input(tmp_path / "input", 7), tmp_path / "checkpoint"
    given.add(8)
    given.files.add({"t": None, "k": "a", "number": 1})
    given.files.add({"t": "2013-01-01T01:00:00Z", "k": None, "number": 1})
    run(query_of("count", given.files.stream(spark)), Kept(), checkpoint)
    lag = timedelta(seconds=20)
    policies = {
        "idle after 10 s": limiting_lag(lag, idle_timeout=timedelta(seconds=10)),
        "no lag": limiting_lag(timedelta(0), max_skew=timedelta(seconds=1)),
    }
    found = audited(spark, checkpoint, window=WINDOW, policies=policies)
    written = document(found)
    assert written["rows"]["lost"] == found.losses.total.most
    assert written["rows"]["without_event_time"] == 1
    assert [each["substream"] for each in written["substreams"] if each["rows"] == 1] == ["(null)"]
    assert sum(hour["lost"] for hour in written["hours"]) == sum(window["lost"] for window in written["windows"])
    targets = [each["target"] for each in written["policies"]]
    assert targets == [None, 0.99, 0.999, 0.9999, None, None]
    for under in written["policies"][1:4]:
        assert under["share"] <= 1 - under["target"] + 1e-9
    assert written["policies"][3]["lost"] == 0
    assert [each["target"] for each in written["in_spark"]] == [None, 0.99, 0.999, 0.9999]
    assert written["in_spark"][0]["lost"] == found.losses.total.most
    json.dumps(written)
    shown = text(found)
    assert f"has lost {found.losses.total.most:,} of {found.losses.total.rows:,} rows" in shown
    assert "In all 11 batches, the watermark computed" in shown
    assert [each["name"] for each in written["policies"]][4:] == [*policies]
    assert written["policies"][5]["lost"] > written["policies"][0]["lost"]
    assert all(name in shown for name in policies)
    assert "The same batches in Spark, with a longer delay" in shown
    page = html(found)
    assert page.count("<rect") == 2 * len(found.losses.by_hour)
    assert not re.search("src=|href=|url[(]|@import", page)
    assert written["idle_timeout_ms"] is None, "the batches took seconds for minutes of event time"


def test_wrong_arguments_are_found_by_the_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    given, checkpoint = Input(tmp_path / "input", 7), tmp_path / "checkpoint"
    given.add(4)
    run(query_of("count", given.files.stream(spark)), Kept(), checkpoint)

    def fails(message: str, **arguments: Any) -> None:
        with pytest.raises(InvalidUsage, match=message):
            audited(spark, arguments.pop("checkpoint", checkpoint), **{"window": WINDOW, **arguments})

    wrong = audited(spark, checkpoint, event_time="t + INTERVAL 1 SECOND", window=WINDOW)
    assert len(wrong.differences) == 5
    assert text(wrong).replace("\n", " ").startswith("The figures are not those of this query: in 5 of 5 batches")
    assert "What to write" not in text(wrong) + html(wrong)
    empty = audited(spark, checkpoint, event_time="CAST(NULL AS timestamp)", window=WINDOW)
    assert "No row has an event time: check" in text(empty)
    fails("There is no folder", checkpoint=tmp_path / "missing")
    fails("is no checkpoint of a query", checkpoint=tmp_path / "input")
    assert audited(spark, checkpoint, window=None).window == Window(20_000, 20_000, 0)
    fails("the state of the query has windows of 0:00:20 that start at 0:00:00", window=timedelta(seconds=10))
    fails("the state of the query has windows", window_start=timedelta(seconds=3))
    fails("slide must be more than 0 and at most the window", slide=timedelta(minutes=1))
    fails(
        "event_time of source 0 is 'departed_at', and the rows have the columns t, k, number", event_time="departed_at"
    )
    fails("cannot be computed from the columns", event_time="f(departed_at)")
    fails("has the type string", event_time="k")
    fails("event_time of source 0", event_time="at")
    fails("The rows cannot be read: .*CAST_INVALID_INPUT", event_time="CAST(k AS timestamp)")
    fails(r"delay is 0:00:05, and the checkpoint shows 0:00:20", delay=timedelta(seconds=5))
    fails("no stateful operator 3; it has: 0", operator=3)
    fails("2 values, and the query has 1 sources", event_time=["t", "t"])
    lag: Any = {"type": "limiting_lag", "lag_ms": 0}
    for policy, says in [
        ({"policy": {"type": "none"}}, "is no job configuration: policy"),
        ([], "is no job configuration: JSON: A configuration must be an object"),
        ({"policy": lag, "arrival_target": 0.9}, "is no job configuration: arrival_target: A job needs frames"),
        ({"policy": {"type": "reported"}}, "has the kind `reported`, which needs watermarks of the source"),
        (
            {"policy": {"type": "target_completeness", "target": 0.9, "cold_start_lag_ms": 0}},
            "has the kind `target_completeness`, which learns from single rows",
        ),
        (
            {"policy": lag, "frames": {"every": 15_000}, "arrival_target": 0.9},
            "has arrival_target, for which each window must",
        ),
    ]:
        fails(f"The policy 'new' {says}", policies={"new": policy})
    fails("drops the column tidegate_batch: keep it", read=lambda rows: rows.select("t"))
    log = checkpoint / "sources" / "0" / "1"
    log.write_text(log.read_text().replace("file://", "s3a://gone"))
    log.with_name(".1.crc").unlink()
    fails("Cannot read s3a://gone/.*")
    (checkpoint / "offsets" / "0").write_text("v9\n{}")
    fails("Cannot read .*offsets/0: .*ChecksumException")
    (checkpoint / "offsets" / ".0.crc").unlink()
    fails("has the format 'v9'")


def test_csv_files_with_a_header(spark: SparkSession, tmp_path: Path) -> None:
    """The format follows from the names of the files, and takes the options of the source."""
    folder, kept, checkpoint = tmp_path / "input", Kept(), tmp_path / "checkpoint"
    folder.mkdir()
    for number, minutes in enumerate(([50, 51], [10, 52], [20, 53, 54])):
        lines = [f"2013-01-01T00:{minute}:00Z,{number}{minute}" for minute in minutes]
        (folder / f"{number}.csv").write_text("\n".join(["t,number", *lines]))
        rows = spark.readStream.schema("t timestamp, number long").option("header", True).csv(str(folder))
        run(query_of("dedup", rows), kept, checkpoint)
    found = audit(spark, str(checkpoint), event_time="CAST(t AS timestamp)", options={"header": "true"})
    assert (found.losses.total.rows, found.losses.without_event_time, found.differences) == (7, 0, ())
    assert found.losses.total.most == 7 - kept.total() == 2


def test_files_that_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    """The folder has characters that are encoded in URLs."""
    given, kept, checkpoint = Input(tmp_path / "in 100% é", 7), Kept(), tmp_path / "checkpoint"
    given.add(6)
    stream = query_of("count", given.files.stream(spark))
    run(stream, kept, checkpoint)
    assert audited(spark, checkpoint, window=WINDOW).losses.total.most == given.number - kept.total()
    (given.files.directory / "00003.json").unlink()
    found = audited(spark, checkpoint, window=WINDOW)
    assert "1 of 6 files are gone, such as file:///" in found.missing[0]
    assert found.losses.total.rows == given.number - 12
    for file in given.files.directory.glob("*.json"):
        file.unlink()
    with pytest.raises(InvalidUsage, match=r"Nothing is left to audit of .* 6 of 6 files are gone"):
        audited(spark, checkpoint, window=WINDOW)


def test_the_command_and_the_program_of_the_guide(spark: SparkSession, tmp_path: Path) -> None:
    flights = FileBatches(tmp_path / "landings", "dest string, departed_at timestamp")
    for hour in range(4):
        rows = [{"dest": "BOS", "departed_at": f"2013-01-01T{10 + hour}:{minute}:00Z"} for minute in (10, 50)]
        flights.add(*rows, {"dest": "HNL", "departed_at": f"2013-01-01T{4 + hour:02}:10:00Z"})
    kept, checkpoint = Kept(), tmp_path / "checkpoints" / "hours"
    hours = flights.stream(spark).withWatermark("departed_at", "30 minutes").withColumnRenamed("dest", "k")
    run(hours.groupBy(F.window("departed_at", "1 hour"), "k").count(), kept, checkpoint)
    lost = 12 - kept.total()
    assert lost > 0

    def called(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
        )

    (tmp_path / "audit_hours.py").write_text(FILES["audit_hours.py"])
    printed = called("audit_hours.py").stdout.splitlines()
    assert printed[0] == f"{lost} of 12 rows are lost"
    assert sorted(printed[1:]) == ["BOS 0 8", f"HNL {lost} 4"]
    options = ["--event-time", "departed_at", "--substream", "dest", "--window", "1h", "--format", "json"]
    options += ["--schema", flights.schema, "--report", "report.html", "--report", "report.json"]
    done = called("-m", "tidegate_spark.audit", "--checkpoint", "checkpoints/hours", *options)
    assert done.returncode == 0, done.stderr
    assert f"has lost {lost} of 12 rows" in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["rows"]["lost"] == lost
    assert "<svg" in (tmp_path / "report.html").read_text()
    wrong = called("-m", "tidegate_spark.audit", "--checkpoint", "checkpoints/missing", *options)
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines()[-1] == (
        "tidegate-audit: There is no folder checkpoints/missing: pass the checkpointLocation of the query."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --checkpoint, or --files, or --topic"),
        (["--checkpoint", "c", "--window", "1 our"], "'1 our' is not a duration: write 90s"),
        (["--topic", "t"], "--topic needs --kafka"),
        (["--files", "f", "--delay", "1h"], "--files needs --arrival"),
        (["--files", "f", "--arrival", "at"], "--files and --topic need --delay"),
        (["--files", "f", "--arrival", "at", "--delay", "1h", "--event-time", "u"], "take one --event-time"),
        (["--checkpoint", "c", "--schema", "t timestamp"], "--schema needs --format"),
        (["--checkpoint", "c", *["--format", "csv"] * 3, *["--schema", "a int"] * 2], "3 --format and 2 --schema"),
        (["--checkpoint", "c", "--option", "a"], "'a' has no '='"),
        (["--checkpoint", "c", "--report", "r.txt"], "r.txt must end with .html or .json"),
        (["--checkpoint", "c", "--report", "missing/r.html"], "there is no folder"),
    ],
)
def test_mistakes_of_the_command_need_no_spark(options: list[str], message: str) -> None:
    app = typer.Typer()
    app.command()(command.run)
    ended = CliRunner().invoke(app, ["--event-time", "t", *options], terminal_width=200)
    assert ended.exit_code == 2
    assert message in ended.output


def test_a_compressed_log(spark: SparkSession, tmp_path: Path) -> None:
    """Some platforms compress the files of a checkpoint."""
    given, kept, checkpoint = Input(tmp_path / "input", 7), Kept(), tmp_path / "checkpoint"
    given.add(8)
    run(query_of("count", given.files.stream(spark)), kept, checkpoint)
    for file in [*(checkpoint / "offsets").iterdir(), *(checkpoint / "sources" / "0").iterdir()]:
        if file.name.endswith(".crc"):
            file.unlink()
        elif file.name.isdigit() and int(file.name) % 2:
            file.write_bytes(gzip.compress(file.read_bytes()))
        else:
            file.write_bytes(pa.compress(file.read_bytes(), "zstd", asbytes=True))
    found = audited(spark, checkpoint, window=WINDOW)
    assert found.losses.total.most == given.number - kept.total() > 0


def test_an_input_without_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """A query that reads a batch of each minute of arrival loses what the audit of its input has said."""
    given, kept = Input(tmp_path / "input", 5), Kept()
    given.add(8)
    run(query_of("count", given.files.stream(spark)), kept, tmp_path / "checkpoint")
    rows = spark.read.schema(SCHEMA).json(str(given.files.directory))
    arrival = "timestamp_seconds(60 * floor(number / 12))"
    found = audit_input(
        rows,
        event_time="t",
        arrival=arrival,
        every=timedelta(minutes=1),
        delay=timedelta(seconds=20),
        substream="k",
        window=WINDOW,
    )
    assert found.losses.total.most == given.number - kept.total() > 0
    assert len(found.batches) == 8
    assert "8 batches from" in text(found)
    assert text(found).startswith("The query would lose")
    assert document(found)["idle_timeout_ms"] > 0
    without = audit_input(
        rows,
        event_time="t",
        arrival=f"CASE WHEN number > 2 THEN {arrival} END",
        every=timedelta(minutes=1),
        delay=timedelta(seconds=20),
    )
    assert without.losses.total.rows == given.number - 3
    assert without.missing == ("3 more rows have no time of arrival, and are in none of these figures.",)
    with pytest.raises(InvalidUsage, match="has no rows"):
        audit_input(
            rows.limit(0), event_time="t", arrival=arrival, every=timedelta(minutes=1), delay=timedelta(seconds=20)
        )
