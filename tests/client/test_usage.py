"""Invalid arguments of configurations and jobs are refused, and valid ones are accepted."""

import re
from datetime import timedelta

import pytest

import tidegate_spark
from tests.support.api import operate
from tidegate.reads.config import JobConfig
from tidegate_spark import InvalidUsage, Job, limiting_lag
from tidegate_spark.frame import Frame
from tidegate_spark.start import check_start


def test_invalid_configurations_are_refused() -> None:
    """The client refuses an invalid configuration without a call to the coordinator."""
    with pytest.raises(InvalidUsage, match="lag must be 0 ms or more"):
        limiting_lag(timedelta(minutes=-1))
    with pytest.raises(InvalidUsage, match="whole milliseconds"):
        limiting_lag(timedelta(microseconds=1500))
    with pytest.raises(InvalidUsage, match="slide needs frame"):
        limiting_lag(timedelta(0), slide=timedelta(hours=1))
    with pytest.raises(InvalidUsage, match="idle_timeout must be 1 ms"):
        limiting_lag(timedelta(0), idle_timeout=timedelta(0))
    with pytest.raises(InvalidUsage, match="max_lag must be 1 ms"):
        limiting_lag(timedelta(0), max_lag=timedelta(0))
    with pytest.raises(InvalidUsage, match="frame and min_step cannot be combined"):
        limiting_lag(timedelta(0), frame=timedelta(hours=1), min_step=timedelta(hours=1))
    with pytest.raises(InvalidUsage, match="max_delay must be 1 ms"):
        tidegate_spark.limiting_lag_and_delay(timedelta(0), timedelta(0))
    with pytest.raises(InvalidUsage, match="lag must be a timedelta; it is 5"):
        limiting_lag(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match=r"idle_timout: unknown limit; expected one of frame, .*idle_timeout"):
        limiting_lag(timedelta(0), idle_timout=timedelta(1))  # type: ignore[call-arg]
    with pytest.raises(InvalidUsage, match="overrides: 'a' needs a configuration"):
        limiting_lag(timedelta(0), overrides={"a": timedelta(2)})  # type: ignore[dict-item]
    with pytest.raises(InvalidUsage, match="expected_queries must be a list of names"):
        limiting_lag(timedelta(0), expected_queries="ab")
    with pytest.raises(InvalidUsage, match="query 'a/b'"):
        tidegate_spark.reported(expected_queries=["a/b"])


def test_the_coordinator_accepts_all_configurations() -> None:
    """The coordinator accepts every configuration that the client can create."""
    minute = timedelta(minutes=1)
    limits: tidegate_spark.Limits = {
        "idle_timeout": minute,
        "max_retention": minute,
        "query_timeout": minute,
        "max_batch_hold": minute,
        "max_future_skew": None,
        "max_lag": minute,
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
        document = JobConfig.model_validate(config)
        assert config.items() <= document.model_dump().items()


def test_invalid_addresses_and_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_URL", raising=False)
    with pytest.raises(InvalidUsage, match="TIDEGATE_URL"):
        tidegate_spark.connect(job="flights")
    with pytest.raises(InvalidUsage, match="http://host:8000"):
        tidegate_spark.connect("coordinator:8000", job="flights")
    for name in ("a/b", ".", "..", ""):
        with pytest.raises(InvalidUsage, match=re.escape(f"job {name!r} must be 1 to 128")):
            tidegate_spark.connect("http://localhost:1", job=name)
    job = tidegate_spark.connect("http://localhost:1", job="flights")  # no server listens there
    for dots in (".", ".."):
        for call in (
            lambda name: job.release(name),
            lambda name: job.hold(1, "audit", hold=name),
            lambda name: job.retire(name),
            lambda name: job.hand_over(name, "q"),
            lambda name: job.hand_over("q", name),
            lambda name: tidegate_spark.limiting_lag(timedelta(0), expected_queries=[name]),
            lambda name: check_start("start", name, "/checkpoint"),
        ):
            with pytest.raises(InvalidUsage, match=re.escape(f"{dots!r} must be 1 to 128")):
                call(dots)


def test_on_outage_is_a_duration_or_continue() -> None:
    """A number is refused, because its unit is not clear."""
    for chosen in ("wait", 600, timedelta(seconds=-1)):
        with pytest.raises(InvalidUsage, match="'continue'; it is"):
            tidegate_spark.connect("http://localhost:1", job="j", on_outage=chosen)  # type: ignore[arg-type]
    assert tidegate_spark.connect("http://localhost:1", job="j", on_outage="continue").connection.on_outage.continues


def test_every_export_exists_and_is_documented() -> None:
    for name in tidegate_spark.__all__:
        exported = getattr(tidegate_spark, name)
        assert name in ("JobConfig", "SOURCE_PARTITION") or exported.__doc__


def test_a_single_name_is_refused() -> None:
    """A string in place of a list is refused; otherwise each of its letters would be a name."""
    job = tidegate_spark.connect("http://localhost:1", job="flights")
    with pytest.raises(InvalidUsage, match="write \\['HNL'\\]"):
        job.done("departures", "HNL")
    with pytest.raises(InvalidUsage, match="declare takes a list"):
        job.declare("departures", "HNL")


def test_the_end_of_input_closes_the_windows_of_all_streams(job: Job) -> None:
    """`complete()` moves the watermark to the end of the last window, or to a later `up_to`."""
    job.ensure_job()
    job.frames = {Frame(10_000, 10_000), Frame(25_000, 10_000, 4_000)}
    operate(job, "POST", ":report", {"substreams": ["a"], "max_event_times": [12_345]})
    assert job.complete() == 29_000
    assert job.complete() == 29_000
    assert job.complete(up_to=31_000) == 31_000
