"""What the offsets of a batch prove. Rows of a substream may be unread although no batch has any."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import SourceProgress

from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchInput, BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.sources.brokers import Brokers
from tidegate_spark.sources.offsets import (
    LatestOffsets,
    PartitionNames,
    ReadPartitions,
    SourceOffsets,
    batch_offsets,
    input_of,
    partitions_read,
)
from tidegate_spark.sources.plan import StreamSources
from tidegate_spark.sources.running import DriverEvidenceReader, ProgressEvidenceReader, QueryOffsets

BY_PARTITION = PartitionNames(("topic", "partition"))


def kafka(end: str, latest: str | None, committed: str | None = None) -> SourceOffsets:
    return SourceOffsets(end, latest, committed)


def test_a_batch_that_ends_at_the_latest_offsets_has_all_input() -> None:
    """Texts of Spark and of Spark Connect differ in blanks, and perhaps in the order of members."""
    evidence = partitions_read([kafka('{"t":{"0":5,"1":7}}', '{"t": {"1": 7, "0": 5}}')])
    assert evidence == ReadPartitions(True, frozenset({("t", 0), ("t", 1)}))
    assert input_of(evidence, None).evidence == Evidence()


def test_a_limit_on_the_size_of_batches_hides_no_input() -> None:
    """Partition 1 is silent, partition 0 has a backlog, and partition 2 is new."""
    evidence = partitions_read([kafka('{"t":{"0":5,"1":7}}', '{"t":{"0":900,"1":7,"2":1}}')])
    assert evidence == ReadPartitions(False, frozenset({("t", 1)}), frozenset({("t", 0), ("t", 2)}))
    assert input_of(evidence, BY_PARTITION).evidence == Evidence(frozenset({"t/1"}))
    assert input_of(evidence, None).evidence is None, "another substream may have rows in any partition"


@pytest.mark.parametrize(
    ("columns", "caught_up"),
    [
        (("topic", "partition"), {"a/1", "b/0", "b/1"}),
        (("partition", "topic"), {"1/a", "0/b", "1/b"}),
        (("topic",), {"b"}),
        (("partition",), {"1"}),
    ],
)
def test_a_substream_is_caught_up_if_all_of_its_partitions_are(columns: tuple[str, ...], caught_up: set[str]) -> None:
    evidence = partitions_read(
        [kafka('{"a":{"0":1,"1":2},"b":{"0":3,"1":4}}', '{"a":{"0":9,"1":2},"b":{"0":3,"1":4}}')]
    )
    assert PartitionNames(columns).of(evidence) == caught_up


def test_less_input_than_the_minimum_for_a_batch_is_unread() -> None:
    """Spark is idle under minOffsetsPerTrigger although a partition has rows."""
    idle = [kafka('{"t":{"0":5,"1":7}}', '{"t":{"0":5,"1":9}}', '{"t":{"0":5,"1":7}}')]
    assert partitions_read(idle, is_idle=True) == ReadPartitions(False, frozenset({("t", 0)}), frozenset({("t", 1)}))


def test_the_rows_of_an_unfinished_batch_are_unread() -> None:
    planned = [kafka('{"t":{"0":6}}', '{"t":{"0":6}}', '{"t":{"0":5}}')]
    assert partitions_read(planned).all_caught_up is True
    assert partitions_read(planned, is_idle=True).all_caught_up is False
    assert partitions_read([kafka('{"t":{"0":6}}', '{"t":{"0":6}}', None)], is_idle=True).all_caught_up is False


def test_a_batch_that_an_earlier_run_has_planned_proves_nothing() -> None:
    """Spark has not asked Kafka for the latest offsets yet."""
    evidence = partitions_read([kafka('{"t":{"0":6}}', None)])
    assert input_of(evidence, BY_PARTITION).evidence == Evidence(frozenset())


FILES, MARKERS = SourceOffsets('{"logOffset":3}', None), SourceOffsets('{"watermark": 5, "run": "a"}', None)
ALL_FILES = SourceOffsets(FILES.end, None, is_complete=True)
AT_END, BEHIND = kafka('{"t":{"0":6}}', '{"t":{"0":6}}'), kafka('{"t":{"0":6}}', '{"t":{"0":7}}')


@pytest.mark.parametrize(
    ("sources", "all_caught_up"),
    [
        ([], False),
        ([MARKERS], False),
        ([FILES], False),
        ([ALL_FILES], True),
        ([AT_END, MARKERS], True),
        ([AT_END, FILES], False),
        ([AT_END, ALL_FILES], True),
        ([BEHIND, FILES], False),
        ([AT_END, BEHIND], False),
        ([SourceOffsets("-", None)], False),
        ([SourceOffsets("7", "7")], True),
        ([kafka('{"watermark":{"0":6}}', '{"watermark":{"0":7}}')], False),  # a topic of this name
    ],
)
def test_all_sources_count(sources: list[SourceOffsets], all_caught_up: bool) -> None:
    assert partitions_read(sources).all_caught_up is all_caught_up


AT = ProcessingTime(100.0, 0.0)


class Unasked:
    """Spark's offsets of a query whose first batch was planned by an earlier run."""

    def read(self, is_idle: bool) -> list[SourceOffsets]:
        raise AttributeError("reportLatestOffset")


def test_offsets_that_cannot_be_read_prove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Another rule would make substreams idle that have unread rows. The log says once why the watermark waits."""
    read = DriverEvidenceReader(
        cast(QueryOffsets, Unasked()),
        StreamSources(),
        BY_PARTITION,
        None,
        QueryLog("j", "q"),
        lambda: False,
        lambda: AT,
    )
    assert read.of_batch() == NOTHING_KNOWN
    assert read.when_idle() is None
    assert caplog.text.count("silent substreams hold the watermark") == 1


class Source:
    """Spark's offsets of a query, and what the brokers tell about the partitions."""

    def __init__(self) -> None:
        self.end, self.latest, self.high_watermark, self.first = 5, 5, 5, 0
        self.committed: int | None = None

    def read(self, is_idle: bool) -> Any:
        committed = None if self.committed is None else json.dumps({"t": {"0": self.committed}})
        return [kafka(json.dumps({"t": {"0": self.end}}), json.dumps({"t": {"0": self.latest}}), committed)]

    def ends(self, partitions: object) -> Any:
        return {("t", 0): self.high_watermark}

    def firsts(self, partitions: object) -> Any:
        return {("t", 0): self.first}


def test_an_open_transaction_is_no_silence() -> None:
    """Spark's latest offset ends before the first record of an open transaction."""
    source, times = Source(), iter(range(100))
    at = [ProcessingTime(float(time), 0.0) for time in range(100)]
    read = DriverEvidenceReader(
        cast(QueryOffsets, source),
        StreamSources(reads_committed=True),
        BY_PARTITION,
        cast(Brokers, source),
        QueryLog("j", "q"),
        lambda: False,
        lambda: at[next(times)],
    )
    assert read.of_batch().evidence == Evidence(), "without an earlier read, the current ends count"
    source.high_watermark = 9  # a transaction begins
    assert read.of_batch().evidence == Evidence(None, at[0]), "up to the time of the earlier read"
    assert read.of_batch().evidence == Evidence(frozenset(), at[1])
    source.end = source.latest = 9  # it is committed, and its records are read
    source.high_watermark = 12  # others have arrived
    assert read.of_batch().evidence == Evidence(None, at[2]), "the transaction was open, and is read"


def test_offsets_of_a_batch_tell_what_is_unread_and_what_was_never_read() -> None:
    past, none = LatestOffsets(), {("t", 0): 0}

    def read(start: int | None, end: int, latest: int, at_s: float, first: int = 0) -> BatchOffsets | None:
        def text(offset: int) -> str:
            return json.dumps({"t": {"0": offset}})

        source = kafka(text(end), text(latest), None if start is None else text(start))
        return batch_offsets([source], past, at_s, {("t", 0): first})

    def told(start: int | None, end: int, latest: int, behind_ms: int | None) -> BatchOffsets:
        return BatchOffsets(("t/0",), (start,), (end,), (latest,), (behind_ms,))

    assert read(None, 100, 900, 10.0) == told(None, 100, 900, None), "the records were there before"
    assert read(100, 200, 1000, 20.0) == told(100, 200, 1000, None)
    assert read(200, 900, 1100, 30.0) == told(200, 900, 1100, 20_000), "the record 900 came after 10.0"
    assert read(900, 1100, 1100, 40.0) == told(900, 1100, 1100, 0)
    assert read(1100, 1300, 1300, 50.0, first=1250) == told(1250, 1300, 1300, 0), "Kafka has deleted 150 records"
    assert read(1300, 1400, 1400, 60.0, first=1500) == told(1400, 1400, 1400, 0), "and here all of the batch"
    assert read(1400, 40, 40, 70.0) == told(1400, 40, 40, 0), "the topic was created again"
    past.add(100.0, {("t", 0): 50})
    assert read(40, 50, 90, 95.0) == told(40, 50, 90, 0), "the clock went back"
    assert batch_offsets([SourceOffsets('{"logOffset":3}', None)], past, 80.0, none) is None, "not of Kafka"
    twice = [kafka('{"t":{"0":5}}', '{"t":{"0":9}}', '{"t":{"0":1}}'), kafka('{"t":{"0":3}}', '{"t":{"0":9}}', None)]
    assert batch_offsets(twice, LatestOffsets(), 0.0, {}) == told(None, 3, 9, None), "two sources read the topic"
    many = json.dumps({"t": {str(number): 1 for number in range(5001)}})
    assert batch_offsets([kafka(many, many, None)], LatestOffsets(), 0.0, {}) is None, "too many for a call"


@pytest.mark.parametrize("columns", [("topic", "partition"), ("topic",), ("partition",), ("partition", "topic")])
def test_offsets_of_a_batch_tell_how_substreams_are_named(columns: tuple[str, ...]) -> None:
    names, offsets = PartitionNames(columns), '{"t":{"0":5,"1":7},"u.x-y_z":{"0":1}}'
    told = batch_offsets([kafka(offsets, offsets, None)], LatestOffsets(), 0.0, {}, substreams=names)
    assert told is not None and told.substream_columns == columns
    assert {told.substream(partition) for partition in told.partitions} == names.all_of(
        partitions_read([kafka(offsets, offsets)])
    )
    odd = '{"a%b":{"0":5}}'  # no name of a topic, and escaped in the name of a substream
    told = batch_offsets([kafka(odd, odd, None)], LatestOffsets(), 0.0, {}, substreams=names)
    assert told is not None and told.substream_columns == (() if columns in TWO else columns)


TWO = [("topic", "partition"), ("partition", "topic")]


def test_offsets_of_a_batch_tell_which_substreams_continue() -> None:
    before, after = '{"t":{"0":100,"1":5},"u":{"0":3}}', '{"t":{"0":40,"1":5},"u":{"0":3},"v":{"0":7}}'
    told = batch_offsets([kafka(after, after, before)], LatestOffsets(), 0.0, {}, substreams=BY_PARTITION)
    assert told is not None
    assert told.starts == (100, 5, 3, 0), "a partition that was not there before is read from its beginning"
    assert told.continuing() == frozenset({"u/0", "v/0"}), "topic t was created again"
    by_number = replace(told, substream_columns=("partition",))
    assert by_number.continuing() == frozenset(), "partition 0 of u has the substream of partition 0 of t"
    assert replace(told, substream_columns=()).continuing() is replace(told, batch_id=3).continuing() is None


def test_the_age_of_a_backlog_is_known_for_days() -> None:
    past = LatestOffsets()
    for minute in range(3 * 24 * 60):
        past.add(60.0 * minute, {("t", 0): minute})
    assert len(past) <= LatestOffsets.KEPT
    for minutes in (1, 5, 60, 24 * 60, 2 * 24 * 60):
        unread_ms = past.behind_ms(("t", 0), minute - minutes)
        assert unread_ms is not None
        assert 60_000 * minutes <= unread_ms <= 60_000 * (2 * minutes + 2), minutes


def progress(description: str, end: str, latest: str) -> SourceProgress:
    return SourceProgress(description, "null", end, latest, 0, 0.0, 0.0, {})


def test_under_spark_connect_the_progress_of_a_batch_is_evidence() -> None:
    evidence = ProgressEvidenceReader(StreamSources(), BY_PARTITION)
    read = progress("KafkaV2[Subscribe[t]]", '{"t":{"0":5,"1":7}}', '{"t":{"0":5,"1":7}}')
    behind = progress("KafkaV2[Subscribe[t]]", '{"t":{"0":5,"1":7}}', '{"t":{"0":900,"1":7}}')
    files = progress("FileStreamSource[file:/in]", '{"logOffset":3}', "null")
    unknown = progress("DeltaSource[file:/in]", '{"reservoirVersion":3}', "null")
    columns = ("topic", "partition")
    told = BatchOffsets(("t/0", "t/1"), (None, None), (5, 7), (5, 7), (0, 0), batch_id=1, substream_columns=columns)
    assert evidence.of_progress(1, [read, files]) == BatchInput(Evidence(), frozenset({"t/0", "t/1"}), told)
    assert evidence.of_progress(1, [behind]).evidence == Evidence(frozenset({"t/1"}))
    of_classic_session = progress("FileStreamSource[file:/in]", '{"logOffset":3}', "None")
    assert evidence.of_progress(1, [files]).evidence == Evidence()
    assert evidence.of_progress(1, [of_classic_session]).evidence == Evidence()
    assert evidence.of_progress(1, [unknown]).evidence == Evidence(frozenset())
    limited = ProgressEvidenceReader(StreamSources(has_file_limit=True), None)
    assert limited.of_progress(1, [files]).evidence is None
    declared = ProgressEvidenceReader(StreamSources(has_file_limit=True, are_complete=True), None)
    assert declared.of_progress(1, [files, unknown]).evidence == Evidence()
    assert declared.of_progress(1, [behind]).evidence is None, "for Kafka, only the offsets count"
    assert (evidence.when_idle(), ProgressEvidenceReader(StreamSources(has_minimum=True), None).when_idle()) == (
        Evidence(),
        None,
    )
