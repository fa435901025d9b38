"""Runs of movements, which the history of a page shows as one row."""

from typing import Any

from tidegate.domain.history import LISTS, NUMBERS, Kind, Record
from tidegate.views.history import HistoryRecord, grouped, id_after
from tidegate.views.sentences import group_details, group_title, plain_text

MINUTE = 60_000


def record(minutes: int, kind: Kind, **details: Any) -> HistoryRecord:
    return HistoryRecord(id=f"{minutes * MINUTE}-0", at_ms=minutes * MINUTE, kind=kind, **details)


def movement(minutes: int, substream: str | None = "HNL", kind: Kind = Kind.EMISSION, **details: Any) -> HistoryRecord:
    held = {"held_by": "slow", "substream": substream} if substream else {}
    return record(
        minutes, kind, **{"watermark": minutes * 1000, "coalesced_watermark": minutes * 1000, **held, **details}
    )


def test_a_record_of_a_newer_version_is_readable() -> None:
    """During a rolling upgrade, a replica reads records with details that it does not know."""
    found = HistoryRecord.of("7-0", Record(7, Kind.IDLE, {"count": 1, "of_a_newer_version": "x"}))
    assert (found.count, hasattr(found, "of_a_newer_version")) == (1, False)


def test_the_details_that_are_not_text_are_in_the_api() -> None:
    assert {*NUMBERS, *LISTS} <= HistoryRecord.model_fields.keys()


def row(*oldest_first: HistoryRecord) -> tuple[str, str]:
    run = [one.model_dump() for one in reversed(oldest_first)]
    return group_title(run), plain_text(group_details(run), 0)


def test_neighboring_movements_are_one_run() -> None:
    moved = [movement(5), movement(4, kind=Kind.COALESCED_WATERMARK), movement(3)]
    idle, active, first = record(2, Kind.IDLE), record(1, Kind.ACTIVE), movement(0)
    assert grouped([*moved, idle, active, first]) == [moved, [idle], [active], [first]]
    assert grouped([idle, idle]) == [[idle], [idle]]
    assert grouped([]) == []


def test_a_group_names_the_holders_that_held_most_movements() -> None:
    holders = ["HNL"] * 31 + ["BOS"] * 12 + ["SEA"] * 3 + ["SFO"]
    title, details = row(*(movement(number, name) for number, name in enumerate(holders)))
    assert title == "47 emissions"
    assert details == (
        "W from 1970-01-01 00:00:00Z to 1970-01-01 00:00:46Z in 46 min; "
        "held by HNL for 31 of them, BOS for 12, 2 others for 4"
    )
    assert row(movement(1), movement(2))[1].endswith("; held by HNL")
    assert row(movement(1), movement(2, None))[1].endswith("; held by HNL for 1 of them")
    assert row(movement(1, None), movement(2, None))[1].endswith(" in 1 min")


def test_the_batches_of_a_query_are_one_holder() -> None:
    run = [movement(number, None, batch_id=number, held_by="open_batch", query="departures") for number in range(3)]
    assert row(*run)[1].endswith("; held by open batches of departures")


def test_a_group_without_emissions() -> None:
    only_c = [movement(number, kind=Kind.COALESCED_WATERMARK, watermark=None) for number in (1, 2)]
    assert row(*only_c) == (
        "2 movements of C",
        "C from 1970-01-01 00:00:01Z to 1970-01-01 00:00:02Z in 1 min; held by HNL",
    )
    title, details = row(*only_c, movement(3, watermark=5))
    assert (title, details) == ("1 emission, 2 movements of C", "W at 1970-01-01 00:00:00.005Z; held by HNL")


def test_a_group_counts_the_limits_that_acted() -> None:
    limits = [{"limit": "max_retention_ms", "count": 2, "substreams": ["a", "b"]}]
    assert row(movement(1), movement(2, limits=limits))[1].endswith("; max_retention_ms acted in 1 of them")


def test_the_id_after_a_record_is_the_lowest() -> None:
    assert id_after("1357554600000-0") == "1357554600000-1"
    assert id_after("1357554600000-9") == "1357554600000-10"
