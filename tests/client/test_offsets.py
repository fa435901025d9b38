"""What the offsets of a batch prove. Rows of a substream may be unread although no batch has any."""

from typing import cast

import pytest

from tidegate_spark.logs import QueryLog
from tidegate_spark.sources.offsets import Evidence, InputRead, PartitionNames, SourceOffsets, evidence_of
from tidegate_spark.sources.query import QueryOffsets, ReadInput

BY_PARTITION = PartitionNames(("topic", "partition"))


def kafka(end: str, latest: str | None, committed: str | None = None) -> SourceOffsets:
    return SourceOffsets(end, latest, committed)


def test_a_batch_that_ends_at_the_latest_offsets_has_all_input() -> None:
    """Texts of Spark and of Spark Connect differ in blanks, and perhaps in the order of members."""
    evidence = evidence_of([kafka('{"t":{"0":5,"1":7}}', '{"t": {"1": 7, "0": 5}}')])
    assert evidence == Evidence(True, frozenset({("t", 0), ("t", 1)}))
    assert InputRead.of(evidence, None) == InputRead(None)


def test_a_limit_on_the_size_of_batches_hides_no_input() -> None:
    """Partition 1 is silent, partition 0 has a backlog, and partition 2 is new."""
    evidence = evidence_of([kafka('{"t":{"0":5,"1":7}}', '{"t":{"0":900,"1":7,"2":1}}')])
    assert evidence == Evidence(False, frozenset({("t", 1)}), frozenset({("t", 0), ("t", 2)}))
    assert InputRead.of(evidence, BY_PARTITION) == InputRead(frozenset({"t/1"}))
    assert InputRead.of(evidence, None) == InputRead(frozenset()), "another substream may have rows in any partition"


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
    evidence = evidence_of([kafka('{"a":{"0":1,"1":2},"b":{"0":3,"1":4}}', '{"a":{"0":9,"1":2},"b":{"0":3,"1":4}}')])
    assert PartitionNames(columns).caught_up(evidence) == caught_up


def test_less_input_than_the_minimum_for_a_batch_is_unread() -> None:
    """Spark is idle under minOffsetsPerTrigger although a partition has rows."""
    idle = [kafka('{"t":{"0":5,"1":7}}', '{"t":{"0":5,"1":9}}', '{"t":{"0":5,"1":7}}')]
    assert evidence_of(idle, committed=True) == Evidence(False, frozenset({("t", 0)}), frozenset({("t", 1)}))


def test_the_rows_of_an_unfinished_batch_are_unread() -> None:
    planned = [kafka('{"t":{"0":6}}', '{"t":{"0":6}}', '{"t":{"0":5}}')]
    assert evidence_of(planned).all_read is True
    assert evidence_of(planned, committed=True).all_read is False
    assert evidence_of([kafka('{"t":{"0":6}}', '{"t":{"0":6}}', None)], committed=True).all_read is False


def test_a_batch_that_an_earlier_run_has_planned_proves_nothing() -> None:
    """Spark has not asked Kafka for the latest offsets yet."""
    evidence = evidence_of([kafka('{"t":{"0":6}}', None)])
    assert InputRead.of(evidence, BY_PARTITION) == InputRead(frozenset())


FILES, MARKERS = SourceOffsets('{"logOffset":3}', None), SourceOffsets('{"watermark": 5, "run": "a"}', None)
AT_END, BEHIND = kafka('{"t":{"0":6}}', '{"t":{"0":6}}'), kafka('{"t":{"0":6}}', '{"t":{"0":7}}')


@pytest.mark.parametrize(
    ("sources", "all_read"),
    [
        ([], None),
        ([MARKERS], None),
        ([FILES], None),
        ([AT_END, MARKERS], True),
        ([AT_END, FILES], None),
        ([BEHIND, FILES], False),
        ([AT_END, BEHIND], False),
        ([SourceOffsets("-", None)], None),
        ([SourceOffsets("7", "7")], True),
        ([kafka('{"watermark":{"0":6}}', '{"watermark":{"0":7}}')], False),  # a topic of this name
    ],
)
def test_all_sources_count(sources: list[SourceOffsets], all_read: bool | None) -> None:
    assert evidence_of(sources).all_read is all_read


class Unasked:
    """Spark's offsets of a query whose first batch was planned by an earlier run."""

    def read(self) -> list[SourceOffsets]:
        raise AttributeError("reportLatestOffset")


def test_offsets_that_cannot_be_read_prove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Another rule would make substreams idle that have unread rows. The log says once why the watermark waits."""
    read = ReadInput(cast(QueryOffsets, Unasked()), BY_PARTITION, QueryLog("j", "q"), lambda: False)
    for found in (read.of_batch(), read.when_idle()):
        assert found == InputRead(frozenset())
    assert caplog.text.count("silent substreams hold the watermark") == 1
