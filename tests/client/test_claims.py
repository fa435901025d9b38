"""The histories of tables: the batches and the claims that the versions of a table record."""

import json
from typing import Any

import pytest

from tidegate_spark import InvalidUsage
from tidegate_spark.claims import AppendRecord, PublishedWatermark, TableHistory, delta_history, iceberg_history

ON, LATE = "id/on", "id/late"


def record(
    batch_id: int, watermark: int | None, writer: str = ON, job: str = "flights", incarnation: int = 1
) -> AppendRecord:
    until = None if watermark is None else watermark - 5
    return AppendRecord(writer, batch_id, 1000 + batch_id, job, "q", watermark, until, incarnation)


def batch_of(history: TableHistory, writer: str) -> int | None:
    commit = history.latest_of(writer)
    assert commit is None or commit.planned_ms == 1000 + (commit.batch_id or 0)
    return None if commit is None else commit.batch_id


class Versions:
    """A table of one of the formats: its versions, and a rollback."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.entries: list[dict[str, Any]] = []
        self.properties: dict[str, str] = {}
        self.current: int | None = None

    def _add(self, operation: str, **members: Any) -> int:
        version = len(self.entries)
        if self.form == "delta":
            self.entries.append({"version": version, "operation": operation, **members})
        else:
            summary = {"operation": operation, **members.get("summary", {})}
            entry = {"snapshot-id": version, "summary": summary}
            self.entries.append(entry if self.current is None else {**entry, "parent-snapshot-id": self.current})
        self.current = version
        return version

    def append(self, added: AppendRecord | None = None) -> int:
        if added is None:
            return self._add("append")
        return self._add("append", userMetadata=added.user_metadata(), summary=added.summary())

    def publish(self, published: PublishedWatermark) -> None:
        if self.form == "delta":
            self._add("append", userMetadata=published.user_metadata())
        else:
            assert self.current is not None
            self.properties |= published.properties(self.current)

    def roll_back(self, version: int) -> None:
        if self.form == "delta":
            self._add("RESTORE", operationParameters={"version": str(version), "timestamp": None})
        else:
            self.current = version

    def forget(self, version: int) -> None:
        self.entries = self.entries[version:]

    def history(self, version: int | None = None) -> TableHistory:
        if self.form == "delta":
            return delta_history(reversed(self.entries), version)
        metadata = {
            "current-snapshot-id": self.current,
            "snapshots": self.entries,
            "properties": self.properties,
        }
        return iceberg_history(json.loads(json.dumps(metadata)), version)

    def watermark(self, version: int | None = None) -> int | None:
        claim = self.history(version).claim()
        return None if claim is None else claim.watermark


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest) -> Versions:
    return Versions(request.param)


def test_the_latest_record_counts(table: Versions) -> None:
    table.append()
    assert table.history().claim() is None
    assert batch_of(table.history(), ON) is None
    table.append(record(0, None))
    table.append(record(0, None, LATE))
    table.append(record(1, 100))
    claimed = table.append(record(2, 200))
    table.append(record(2, None, LATE))
    table.append(record(5, None, "id/on/US"))
    current = table.append()
    history = table.history()
    assert (batch_of(history, ON), batch_of(history, LATE), batch_of(history, "id/windows")) == (2, 2, None)
    assert (batch_of(history, "id/on/US"), batch_of(history, "id/on/us")) == (5, None)
    claim = history.claim("flights")
    assert claim is not None
    assert (claim.watermark, claim.version, claim.claimed_in) == (200, current, claimed)
    assert (claim.frames_until, claim.source, claim.job) == (195, "rows", "flights")
    assert str(claim) == (f"Version {current} has all rows on time below 1970-01-01 00:00:00 UTC (200) of job flights.")
    assert not history.is_cut


def test_a_version_has_the_claims_of_its_ancestors_only(table: Versions) -> None:
    versions = [table.append(record(each, 100 * each)) for each in range(5)]
    assert [table.watermark(version) for version in versions] == [0, 100, 200, 300, 400]
    table.roll_back(versions[1])
    assert table.watermark() == 100
    assert batch_of(table.history(), ON) == 1
    table.append(record(2, 150))
    assert table.watermark() == 150
    assert table.watermark(versions[4]) == 400, "a version that a rollback has undone can still be read"
    with pytest.raises(InvalidUsage, match=r"has no (version|snapshot) 99"):
        table.history(99)


def test_a_published_watermark_counts_until_a_rollback(table: Versions) -> None:
    first = table.append(record(0, 100))
    table.publish(PublishedWatermark("flights", 1, 150))
    assert table.watermark() == 150
    claim = table.history().claim()
    assert claim is not None and claim.source == "published"
    table.append(record(1, 150))
    table.append(record(2, 200))
    table.publish(PublishedWatermark("flights", 1, 250))
    assert table.watermark() == 250
    table.roll_back(first)
    assert table.watermark() == 100


def test_a_published_watermark_is_passed_by_a_claim_of_the_same_incarnation(table: Versions) -> None:
    table.append(record(0, 100))
    claim = table.history().claim()
    assert PublishedWatermark("flights", 1, 100).is_passed_by(claim)
    assert not PublishedWatermark("flights", 1, 101).is_passed_by(claim)
    assert not PublishedWatermark("flights", 2, 50).is_passed_by(claim)
    assert not PublishedWatermark("flights", 1, 50).is_passed_by(None)


def test_a_reset_ends_earlier_claims(table: Versions) -> None:
    table.append(record(7, 900))
    table.append(record(0, 100, "other/on", incarnation=2))
    assert table.watermark() == 100
    table.publish(PublishedWatermark("flights", 2, 120))
    claim = table.history().claim()
    assert claim is not None
    assert (claim.watermark, claim.frames_until) == (120, 95)


def test_claims_of_several_jobs_are_apart(table: Versions) -> None:
    table.append(record(0, 100))
    table.append(record(0, 70, "other/on", job="weather"))
    with pytest.raises(InvalidUsage, match="Several jobs have written claims into this table: flights, weather"):
        table.history().claim()
    claims = [table.history().claim(job) for job in ("flights", "weather", "trains")]
    assert [claim and claim.watermark for claim in claims] == [100, 70, None]


def test_a_cut_history_is_known_as_such(table: Versions) -> None:
    for each in range(4):
        table.append(record(each, 100 * each) if each < 2 else None)
    assert not table.history().is_cut
    table.forget(1)
    assert table.history().is_cut
    assert batch_of(table.history(), ON) == 1
    table.forget(1)
    assert batch_of(table.history(), ON) is None
    assert table.history().is_cut


def test_a_table_without_a_version() -> None:
    for current in (None, -1):
        history = iceberg_history({"current-snapshot-id": current, "snapshots": [], "properties": {"a": "b"}})
        assert history.commits == ()
        assert history.claim() is None
        assert not history.is_cut


def test_a_restore_by_time_cuts_the_history() -> None:
    """It is not known which version it has restored."""
    table = Versions("delta")
    table.append(record(0, 100))
    table.entries.append({"version": 1, "operation": "RESTORE", "operationParameters": {"timestamp": "2026-01-01"}})
    assert table.history().is_cut
    assert table.history().claim() is None


@pytest.mark.parametrize("text", [None, "", "nightly load", "[1]", '{"tidegate": 1}', '{"other": {"batch": 1}}'])
def test_metadata_of_other_writers_is_no_record(text: str | None) -> None:
    history = delta_history([{"version": 0, "operation": "WRITE", "userMetadata": text}])
    assert (batch_of(history, ON), history.claim()) == (None, None)


def test_watermarks_are_exact() -> None:
    """Event times may have 63 bits."""
    for form in ("delta", "iceberg"):
        table = Versions(form)
        table.append(record(0, 2**63 - 1))
        assert table.watermark() == 2**63 - 1
        table.append(record(1, -(2**62) - 1, incarnation=2))
        assert table.watermark() == -(2**62) - 1
