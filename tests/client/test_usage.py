"""Invalid arguments of configurations and jobs are refused, and valid ones are accepted."""

import re
from datetime import timedelta
from typing import Any

import pytest

import tidegate_spark
from tests.support.api import operate
from tests.support.clock import VirtualClock
from tidegate.views.config import ConfigDocument
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
    for queries in ("ab", 5):
        with pytest.raises(InvalidUsage, match="expected_queries must be a list of names"):
            limiting_lag(timedelta(0), expected_queries=queries)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="query 5 must be 1 to 128"):
        limiting_lag(timedelta(0), expected_queries=[5])  # type: ignore[list-item]
    with pytest.raises(InvalidUsage, match="overrides must be a dict"):
        limiting_lag(timedelta(0), overrides=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="pattern must be a text; it is 5"):
        limiting_lag(timedelta(0), overrides={5: limiting_lag(timedelta(0))})  # type: ignore[dict-item]
    for target in ("0.9", True, 99, 0.4, float("nan")):
        with pytest.raises(InvalidUsage, match="target must be a share of the rows"):
            tidegate_spark.target_completeness(target, timedelta(0))  # type: ignore[arg-type]
        with pytest.raises(InvalidUsage, match="arrival_target must be a share of the rows"):
            limiting_lag(timedelta(0), arrival_target=target, frames="hour")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="arrival_target needs frames"):
        limiting_lag(timedelta(0), arrival_target=0.9)
    with pytest.raises(InvalidUsage, match="min_rows must be a whole number"):
        tidegate_spark.target_completeness(0.99, timedelta(0), min_rows=0)
    with pytest.raises(InvalidUsage, match="query 'a/b'"):
        tidegate_spark.reported(expected_queries=["a/b"])


def test_the_coordinator_accepts_all_configurations() -> None:
    """The coordinator accepts every configuration that the client can create."""
    minute = timedelta(minutes=1)
    limits: tidegate_spark.Limits = {
        "idle_timeout": minute,
        "max_retention": minute,
        "max_skew": minute,
        "arrival_target": 0.99,
        "max_arrival_delay": 60 * minute,
        "frames": "hour",
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
        document = ConfigDocument.model_validate(config)
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": "http://host:port"}, "'http://host:port' is not the address of a coordinator"),
        ({"url": "http://host:99999"}, "is not the address of a coordinator"),
        ({"url": "http://ho st:8000"}, "is not the address of a coordinator"),
        ({"url": "http://host:8000\n"}, "is not the address of a coordinator"),
        ({"url": "http://host:8000 "}, "is not the address of a coordinator"),
        ({"url": 8000}, "is of type int"),
        ({"url": "http://host:8000?job=a"}, "'http://host:8000' has a query or a fragment"),
        ({"url": "http://host:8000/#a"}, "has a query or a fragment"),
        ({"job": None}, "job None must be 1 to 128"),
        ({"config": "limiting_lag"}, "config needs a configuration, such as"),
        ({"config": {"lag_ms": 1}}, "config needs a configuration, such as"),
        ({"config": {"policy": timedelta(1)}}, "config must have values of JSON only"),
        ({"transport": "http"}, "transport must be an httpx.BaseTransport"),
    ],
)
def test_invalid_arguments_of_connect_are_refused(arguments: dict[str, Any], says: str) -> None:
    """Otherwise they fail later: with a traceback of httpx, or after the wait for an outage."""
    with pytest.raises(InvalidUsage, match=re.escape(says)):
        tidegate_spark.connect(**{"url": "http://host:8000", "job": "j", **arguments})


@pytest.mark.parametrize("key", ["s3cret\n", " s3cret", "s3cret\r\n", "s3 cret", "s3crét"])
@pytest.mark.parametrize("from_environment", [False, True])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, key: str, from_environment: bool
) -> None:
    """A key that was read from a file often ends in a line break. A message must not show a secret."""
    if from_environment:
        monkeypatch.setenv("TIDEGATE_TOKEN", key)
    with pytest.raises(InvalidUsage, match=r"The key .* as in open\('key'\).read\(\).strip") as refused:
        tidegate_spark.connect("http://host:8000", job="j", key=None if from_environment else key)
    assert "s3" not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:s3cret@host:8000",
        "http://s3cret@host",
        "https:/ann:s3cret@host",
        "http://ann:s3cret@host:port",
        "http://ann:s3/c?r#3cret@host",
        "http://host?token=s3cret",
        "ftp://host?token=s3cret",
        "http://host:port#s3cret",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(url: str) -> None:
    """The address is part of most messages of the client."""
    with pytest.raises(InvalidUsage) as refused:
        tidegate_spark.connect(url, job="j")
    shown: BaseException | None = refused.value
    while shown is not None:
        assert "3" not in str(shown).replace("host:8000", "")
        shown = None if shown.__suppress_context__ else shown.__cause__ or shown.__context__


def test_a_value_that_json_cannot_represent_fails_at_once() -> None:
    job = tidegate_spark.connect("http://127.0.0.1:1", job="j", clock=VirtualClock())
    with pytest.raises(InvalidUsage, match="POST /v1/jobs/j:reopen: an argument cannot be sent as JSON"):
        job.reopen(reason=object())  # type: ignore[arg-type]


def test_on_outage_is_a_duration_or_continue() -> None:
    """A number is refused, because its unit is not clear."""
    for chosen in ("wait", 600, timedelta(seconds=-1)):
        with pytest.raises(InvalidUsage, match="'continue'; it is"):
            tidegate_spark.connect("http://localhost:1", job="j", on_outage=chosen)  # type: ignore[arg-type]
    assert tidegate_spark.connect("http://localhost:1", job="j", on_outage="continue").connection.on_outage.continues


def test_every_export_exists_and_is_documented() -> None:
    for name in tidegate_spark.__all__:
        exported = getattr(tidegate_spark, name)
        assert name in ("ConfigDocument", "SOURCE_PARTITION") or exported.__doc__


def test_a_single_name_is_refused() -> None:
    """A string in place of a list is refused; otherwise each of its letters would be a name."""
    job = tidegate_spark.connect("http://localhost:1", job="flights")
    with pytest.raises(InvalidUsage, match="write \\['HNL'\\]"):
        job.done("departures", "HNL")
    with pytest.raises(InvalidUsage, match="declare takes a list"):
        job.declare("departures", "HNL")
    with pytest.raises(InvalidUsage, match="idle takes a list of substreams, not 5"):
        job.idle("departures", 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="restore takes a list of watermarks, not 5"):
        job.restore("departures", ["HNL"], 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="completeness takes a list of lags"):
        job.completeness(lag=timedelta(1))  # type: ignore[arg-type]


def test_a_value_of_another_type_names_no_substream() -> None:
    """Python's text of a list or a boolean is not the name that the client gives the substream of Spark's column."""
    job = tidegate_spark.connect("http://localhost:1", job="flights")
    for values in (["HNL"], True, 1.5, (), ("a", True)):
        with pytest.raises(InvalidUsage, match=re.escape(f"done: {values!r} is not a substream")):
            job.done("departures", [values])  # type: ignore[list-item]
        with pytest.raises(InvalidUsage, match=re.escape(f"substream: {values!r} is not a substream")):
            job.late("departures", values)  # type: ignore[arg-type]


def test_the_end_of_input_closes_the_windows_of_all_streams(job: Job) -> None:
    """`complete()` moves the watermark to the end of the last window, or to a later `up_to`."""
    job.ensure_job()
    job.windows = {Frame(10_000, 10_000), Frame(25_000, 10_000, 4_000)}
    operate(job, "POST", ":report", {"substreams": ["a"], "max_event_times": [12_345]})
    assert job.complete() == 29_000
    assert job.complete() == 29_000
    assert job.complete(up_to=31_000) == 31_000
