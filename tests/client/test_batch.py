"""The functions that receive a batch; the values of `Batch` and `Committed`, their texts and their metrics."""

import pickle
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from tidegate_spark import Batch, Committed, Holder, InvalidUsage
from tidegate_spark.hook.handlers import call_user, takes_batch

BATCH = Batch(7, watermark=1000, job_watermark=5, job="j", query="q", replayed=True)
DF: Any = object()
COMMITTED = Committed(
    BATCH,
    on_time=1000,
    updated=0,
    late=2,
    null_event_time=1,
    future=0,
    watermark=1_357_041_600_000,
    now_ms=1_357_041_661_500,
    held_by=Holder("slow", "q", "HNL", None, 0),
    seconds=1.5,
    acknowledged=True,
    of_timestamps=True,
)


RECEIVED: list[Any] = []


def given(*arguments: Any) -> None:
    RECEIVED[:] = arguments


def two(df: Any, batch_id: Any) -> None:
    given(df, batch_id)


def three(df: Any, batch_id: Any, batch: Any) -> None:
    given(df, batch_id, batch)


def with_default(df: Any, batch_id: Any, table: Any = "rows") -> None:
    given(df, batch_id, table)


def with_optional_batch(df: Any, batch_id: Any, batch: Any = None) -> None:
    given(df, batch_id, batch)


def with_another_name(df: Any, batch_id: Any, now: Any, /, *, table: Any = "rows") -> None:
    given(df, batch_id, now)


def to_table(table: Any, df: Any, batch_id: Any, batch: Any) -> None:
    given(df, batch_id, batch)


@wraps(three)
def decorated(*arguments: Any) -> None:
    three(*arguments)


class Writer:
    """A sink with functions of each form."""

    def two(self, df: Any, batch_id: Any) -> None:
        given(df, batch_id)

    def three(self, df: Any, batch_id: Any, batch: Any) -> None:
        given(df, batch_id, batch)

    def __call__(self, df: Any, batch_id: Any, batch: Any) -> None:
        given(df, batch_id, batch)


@pytest.mark.parametrize(
    ("function", "third"),
    [
        (two, None),
        (three, BATCH),
        (lambda *arguments: given(*arguments), None),
        (with_default, "rows"),
        (with_optional_batch, BATCH),
        (with_another_name, BATCH),
        (decorated, BATCH),
        (partial(to_table, "rows"), BATCH),
        (partial(with_default, table="late"), "late"),
        (partial(three, batch=None), None),
        (Writer().two, None),
        (Writer().three, BATCH),
        (Writer(), BATCH),
    ],
)
def test_a_function_gets_the_batch_if_it_has_a_third_parameter(function: Any, third: Any) -> None:
    """A function that works with Spark's `foreachBatch` gets the same arguments, and the id is exactly an int."""
    call_user(function, DF, BATCH)
    df, batch_id, *more = RECEIVED
    assert (df, batch_id, type(batch_id)) == (DF, 7, int)
    assert [argument for argument in more if argument is not None] == ([] if third is None else [third])


@pytest.mark.parametrize("function", [lambda df: None, lambda df, i, batch, more: None, lambda df, i, *, to: None])
def test_a_function_with_other_parameters_is_refused(function: Any) -> None:
    """Otherwise the query fails in its first batch, with a traceback that does not name the method."""
    with pytest.raises(InvalidUsage, match=r"late_output\(\) takes a function of \(df, batch_id\) or"):
        takes_batch("late_output", function)


def test_a_batch_can_be_pickled() -> None:
    """A batch can be pickled, for example within the closure of a UDF."""
    assert pickle.loads(pickle.dumps(BATCH)) == BATCH  # noqa: S301 - our own bytes


def test_the_text_of_a_committed_batch() -> None:
    """The text has the row counts, the watermark, its distance from the clock, and its holder."""
    assert str(COMMITTED) == (
        "1,003 rows, 2 late, 1 without event time; watermark 2013-01-01 12:00:00 UTC (0:01:01 behind the clock), "
        "held by HNL"
    )
    ahead = replace(COMMITTED, watermark=1_357_041_700_000, late=0, null_event_time=0, future=3, held_by=None)
    assert str(ahead) == (
        "1,003 rows, 3 too far ahead; watermark 2013-01-01 12:01:40 UTC (0:00:39 ahead of the clock), not held"
    )
    assert "watermark 1357041600000, held" in str(replace(COMMITTED, of_timestamps=False))
    assert "watermark 9007199254740991, held" in str(replace(COMMITTED, watermark=2**53 - 1))
    assert "watermark none yet" in str(replace(COMMITTED, watermark=None))
    assert str(replace(COMMITTED, acknowledged=False)).endswith(
        "1 without event time; not reported yet: the coordinator does not answer"
    )


def test_the_metrics_of_a_committed_batch() -> None:
    """`watermark_lag_ms` is None if the watermark is None."""
    assert COMMITTED.metrics()["tidegate.watermark_lag_ms"] == 61_500
    assert replace(COMMITTED, watermark=None).metrics()["tidegate.watermark_lag_ms"] is None


def test_a_batch_of_another_place_cannot_append() -> None:
    with pytest.raises(InvalidUsage, match=r"write_once\(\) works in a function of foreach_batch"):
        BATCH.write_once(DF, "lake.hours")


def appending() -> tuple[Batch, list[Any]]:
    """Return a batch, and the arguments of its appends."""
    appended: list[Any] = []

    def append(*given: Any) -> bool:
        appended.append(given)
        return True

    return replace(BATCH, append=append), appended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": 5}, "name of a table or a path"),
        ({"table": ""}, "name of a table or a path"),
        ({"table": "a\nb"}, "name of a table or a path"),
        ({"table": "x" * 1001}, "name of a table or a path"),
        ({"table": b"lake"}, "name of a table or a path"),
        ({"table": "lake", "part": ""}, "part must be a text of 1 to 100"),
        ({"table": "lake", "part": 7}, "part must be a text of 1 to 100"),
        ({"table": "lake", "assume": "lost"}, "assume must be 'written' or 'missing'"),
    ],
)
def test_invalid_arguments_of_an_append_are_refused(arguments: dict[str, Any], message: str) -> None:
    batch, appended = appending()
    with pytest.raises(InvalidUsage, match=message):
        batch.write_once(DF, **arguments)
    assert appended == []


def test_an_append_gets_its_arguments() -> None:
    batch, appended = appending()
    assert batch.write_once(DF, Path("lake/hours"), part="us", assume="written")
    assert appended == [(batch, DF, "lake/hours", "us", "written")]
    assert batch == BATCH, "the function of an append is no part of its identity"
