"""A restart with other columns or windows: an error with a remedy, or a replacement that the user confirms."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.clock import VirtualClock
from tests.support.drivers import Runs
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tidegate_spark import SOURCE_PARTITION, InvalidUsage, Job, limiting_lag
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices

DEST = QueryChoices.of("departed_at", "dest")
WINDOWS = QueryChoices.of("departed_at", "dest", [10, 10, 0], [["dest"], ["flights"]])


@pytest.fixture
def job(own: LocalCoordinator) -> Job:
    return own.job(job="j", config=limiting_lag(LAG))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "checkpoint", VirtualClock())


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (DEST, QueryChoices.of("departed_at", "origin"), "substream=['dest'], not with event_time='departed_at'"),
        (DEST, QueryChoices.of("departed_at", ["dest", "origin"]), "replaces_substreams=True"),
        (DEST, QueryChoices.of("departed_at", None), "substream=None"),
        (DEST, QueryChoices.of("departed_at", SOURCE_PARTITION), "substream=SOURCE_PARTITION"),
        (DEST, QueryChoices.of("landed_at", "dest"), "event_time='landed_at'"),
        (DEST, WINDOWS, "no windows, not with windows(10, 10, 0).agg('dest', flights)"),
        (WINDOWS, DEST, "new checkpoint"),
        (WINDOWS, QueryChoices.of("departed_at", "dest", [20, 10, 0], [["dest"], ["flights"]]), "windows(20, 10, 0)"),
        (WINDOWS, QueryChoices.of("departed_at", "dest", [10, 10, 0], [["dest"], ["delay"]]), "agg('dest', delay)"),
        (
            WINDOWS,
            QueryChoices.of("landed_at", "dest", [10, 10, 0], [["dest"], ["flights"]]),
            "agg('dest', flights) of 'landed_at'",
        ),
    ],
)
def test_other_columns_or_windows_are_refused(
    runs: Runs, job: Job, before: QueryChoices, now: QueryChoices, expected: str
) -> None:
    """The restart fails before it sends a request. The query can still run with its previous columns."""
    run = runs.run(job, choices=before)
    run.batch(0, HNL=100_000)
    with pytest.raises(InvalidUsage) as refused:
        runs.run(job, choices=now)
    assert expected in str(refused.value)
    runs.run(job, choices=before).batch(1, HNL=110_000)
    assert job.status()["max_event_time"] == 110_000


def test_windows_of_another_event_time_are_not_replaced() -> None:
    """`replaces_substreams` does not allow another event time for windows that are in Spark's state."""
    now = QueryChoices.of("landed_at", "dest", [10, 10, 0], [["dest"], ["flights"]])
    with pytest.raises(InvalidUsage, match="cannot be converted"):
        now.check(WINDOWS, replaces_substreams=True)


def test_substreams_are_replaced_on_request(runs: Runs, job: Job) -> None:
    """Replaced substreams become idle. A substream with a name in both sets stays active."""
    runs.run(job, choices=DEST).batch(0, HNL=100_000, BOS=200_000)
    now = QueryChoices.of("departed_at", "origin")
    run = runs.run(job, choices=now, replaces_substreams=True)
    run.batch(1, JFK=300_000, BOS=250_000)
    states = {row["substream"]: row["state"] for row in job.substreams()}
    assert states == {"HNL": "idle", "BOS": "active", "JFK": "active"}
    assert job.status()["watermark"] == 240_000
    # The new choice is stored, so the next start does not need replaces_substreams.
    runs.run(job, choices=now).batch(2, JFK=310_000)
    assert asdict(now) == Checkpoint(str(runs.directory)).read("choices")


def test_the_backlog_is_reported_before_substreams_are_replaced(runs: Runs, own: LocalCoordinator) -> None:
    """The backlog is reported first, because a later report would make a replaced substream active again."""
    job = own.job(job="j", config=limiting_lag(LAG), on_outage="continue")
    run = runs.run(job, choices=DEST)
    run.batch(0, HNL=100_000)
    own.stop()
    run.batch(1, HNL=110_000)
    run.session.close()
    own.start()
    now = QueryChoices.of("departed_at", "origin")
    runs.run(job, choices=now, replaces_substreams=True).batch(2, JFK=300_000)
    assert {row["substream"]: row["state"] for row in job.substreams()} == {"HNL": "idle", "JFK": "active"}
    assert (job.status()["watermark"], job.status()["rows"]["on_time"]) == (290_000, 3)


def test_a_lost_job_is_restored_without_replaced_substreams(runs: Runs, job: Job, own: LocalCoordinator) -> None:
    runs.run(job, choices=DEST).batch(0, HNL=100_000)
    now = QueryChoices.of("departed_at", "origin")
    runs.run(job, choices=now, replaces_substreams=True).batch(1, JFK=300_000)
    own.empty()
    runs.run(job, choices=now).batch(2, JFK=310_000)
    assert [row["substream"] for row in job.substreams()] == ["JFK"]


def test_a_checkpoint_of_an_older_version_stores_the_choice(runs: Runs, job: Job) -> None:
    runs.run(job).batch(0, HNL=100_000)
    runs.run(job, choices=DEST).batch(1, HNL=110_000)
    with pytest.raises(InvalidUsage):
        runs.run(job, choices=QueryChoices.of("departed_at", "origin"))


def test_under_connect_the_hook_refuses_other_columns(runs: Runs, job: Job) -> None:
    """Under Spark Connect only the hook can read the checkpoint, so the first begin fails instead of the start."""
    runs.run(job, choices=DEST).batch(0, HNL=100_000)
    elsewhere = runs.run(job, choices=QueryChoices.of("departed_at", "origin"), owns_files=False)
    with pytest.raises(InvalidUsage, match="would hold the watermark forever"):
        elsewhere.begin(1)
