"""What a batch tells of itself, before and after its commit."""

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


def test_a_batch_is_the_batch_id_it_always_was() -> None:
    """A function written for foreachBatch gets an int, in paths, sums and JSON alike."""
    assert BATCH == 7
    assert f"part-{BATCH}" == "part-7"
    assert json.dumps({"batch": BATCH}) == '{"batch": 7}'
    assert isinstance(BATCH, int)


def test_a_batch_may_travel() -> None:
    """In the closure of a UDF, for one."""
    for again in (pickle.loads(pickle.dumps(BATCH)), copy.copy(BATCH)):  # noqa: S301 - our own bytes
        assert again == 7
        assert (again.watermark, again.job_watermark, again.job, again.query, again.replayed) == (
            1000,
            5,
            "j",
            "q",
            True,
        )


def test_a_line_says_what_somebody_on_call_wants_to_know() -> None:
    """How many, what of them was set aside, where the watermark stands, and who holds it."""
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
        "1 without event time; reported when the coordinator is back"
    )


def test_metrics_are_named_numbers() -> None:
    """A watermark that is not known has no lag."""
    assert COMMITTED.metrics()["tidegate.watermark_lag_ms"] == 61_500
    assert replace(COMMITTED, watermark=None).metrics()["tidegate.watermark_lag_ms"] is None
