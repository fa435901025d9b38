"""Arguments that cannot work end in one clear error, before anything is started."""

from datetime import timedelta

import pytest

import tidegate_spark
from tests.support.api import operate
from tidegate.reads.config import JobDocument
from tidegate_spark import InvalidUsage, Job, limiting_lag
from tidegate_spark.frame import Frame


def test_rules_are_refused_where_they_are_written() -> None:
    """The line in the user's program, not an answer of a server, names the mistake."""
    with pytest.raises(InvalidUsage, match="lag must be 0 ms or more"):
        limiting_lag(timedelta(minutes=-1))
    with pytest.raises(InvalidUsage, match="whole milliseconds"):
        limiting_lag(timedelta(microseconds=1500))
    with pytest.raises(InvalidUsage, match="slide needs frame"):
        limiting_lag(timedelta(0), slide=timedelta(hours=1))
    with pytest.raises(InvalidUsage, match="idle_timeout must be 1 ms"):
        limiting_lag(timedelta(0), idle_timeout=timedelta(0))
    with pytest.raises(InvalidUsage, match="two ways to throttle"):
        limiting_lag(timedelta(0), frame=timedelta(hours=1), min_step=timedelta(hours=1))
    with pytest.raises(InvalidUsage, match="max_delay must be 1 ms"):
        tidegate_spark.limiting_lag_and_delay(timedelta(0), timedelta(0))
    with pytest.raises(InvalidUsage, match="lag must be a timedelta; it is 5"):
        limiting_lag(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match=r"idle_timout: no such limit; there are frame, .*idle_timeout"):
        limiting_lag(timedelta(0), idle_timout=timedelta(1))  # type: ignore[call-arg]
    with pytest.raises(InvalidUsage, match="overrides: 'a' needs a configuration"):
        limiting_lag(timedelta(0), overrides={"a": timedelta(2)})  # type: ignore[dict-item]
    with pytest.raises(InvalidUsage, match="expected_queries is a list of names"):
        limiting_lag(timedelta(0), expected_queries="ab")
    with pytest.raises(InvalidUsage, match="query 'a/b'"):
        tidegate_spark.reported(expected_queries=["a/b"])


def test_all_rules_are_such_as_the_coordinator_takes() -> None:
    """A rule that can be written in a program but not put into force would fail in production only."""
    minute = timedelta(minutes=1)
    limits: tidegate_spark.Limits = {
        "idle_timeout": minute,
        "max_retention": minute,
        "query_timeout": minute,
        "max_batch_hold": minute,
        "max_future_skew": None,
        "overrides": {"slow-*": limiting_lag(2 * minute)},
        "expected_queries": ["q"],
    }
    every = [
        limiting_lag(minute, **limits),
        limiting_lag(minute, frame=minute, slide=minute / 2, offset=minute / 4),
        tidegate_spark.limiting_lag_and_delay(minute, minute, min_step=minute),
        tidegate_spark.limiting_lag_and_lull(minute, minute, **limits),
        tidegate_spark.limiting_timestamp_and_wall_clock_lag(minute, minute),
        tidegate_spark.reported(),
    ]
    for config in every:
        document = JobDocument.model_validate(config)
        assert config.items() <= document.model_dump().items()


def test_an_address_or_a_name_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's name travels in paths."""
    monkeypatch.delenv("TIDEGATE_URL", raising=False)
    with pytest.raises(InvalidUsage, match="TIDEGATE_URL"):
        tidegate_spark.connect(job="flights")
    with pytest.raises(InvalidUsage, match="http://host:8000"):
        tidegate_spark.connect("coordinator:8000", job="flights")
    with pytest.raises(InvalidUsage, match="job 'a/b'"):
        tidegate_spark.connect("http://localhost:1", job="a/b")


def test_what_to_do_in_an_outage_is_a_duration_or_one_word() -> None:
    """A number would be seconds to one reader and milliseconds to the next."""
    for chosen in ("wait", 600, timedelta(seconds=-1)):
        with pytest.raises(InvalidUsage, match="'continue'; it is"):
            tidegate_spark.connect("http://localhost:1", job="j", on_outage=chosen)  # type: ignore[arg-type]
    assert tidegate_spark.connect("http://localhost:1", job="j", on_outage="continue").connection.on_outage.continues


def test_everything_exported_is_there_and_documented() -> None:
    """What the package names is what it has, each with its contract."""
    assert set(tidegate_spark.HOMES) == set(tidegate_spark.__all__)
    for name in tidegate_spark.__all__:
        exported = getattr(tidegate_spark, name)
        assert name in ("JobConfig", "SOURCE_PARTITION") or exported.__doc__


def test_a_single_name_is_no_list_of_them() -> None:
    """Its letters would be ended for good."""
    job = tidegate_spark.connect("http://localhost:1", job="flights")
    with pytest.raises(InvalidUsage, match="Write \\['HNL'\\]"):
        job.done("departures", "HNL")
    with pytest.raises(InvalidUsage, match="declare takes a list"):
        job.declare("departures", "HNL")


def test_the_end_of_input_closes_the_windows_of_all_streams(job: Job) -> None:
    """A consumer that waits for the end of the last window is answered, and later ends may be named."""
    job.ensure_job()
    job.frames = {Frame(10_000, 10_000), Frame(25_000, 10_000, 4_000)}
    operate(job, "POST", ":report", {"substreams": ["a"], "max_event_times": [12_345]})
    assert job.complete() == 29_000
    assert job.complete() == 29_000
    assert job.complete(up_to=31_000) == 31_000
