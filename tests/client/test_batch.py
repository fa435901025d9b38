"""The values of `Batch` and `Committed`, their texts and their metrics."""

import copy
import json
import pickle
from dataclasses import replace

from tidegate_spark import Batch, Committed, Holder

BATCH = Batch(7, watermark=1000, job_watermark=5, job="j", query="q", replayed=True)
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


def test_a_batch_is_its_batch_id() -> None:
    """`Batch` is an int, so functions written for `foreachBatch` can use it as the batch id."""
    assert BATCH == 7
    assert f"part-{BATCH}" == "part-7"
    assert json.dumps({"batch": BATCH}) == '{"batch": 7}'
    assert isinstance(BATCH, int)


def test_a_batch_can_be_pickled_and_copied() -> None:
    """A batch can be pickled and copied, for example within the closure of a UDF."""
    for again in (pickle.loads(pickle.dumps(BATCH)), copy.copy(BATCH)):  # noqa: S301 - our own bytes
        assert again == 7
        assert (again.watermark, again.job_watermark, again.job, again.query, again.replayed) == (
            1000,
            5,
            "j",
            "q",
            True,
        )


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
