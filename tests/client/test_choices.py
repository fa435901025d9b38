"""A restart with other columns or windows: refused with the remedy, or done as the user says."""

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
WINDOWS = QueryChoices.of("departed_at", "dest", (10, 10, 0), (("dest",), ("flights",)))


@pytest.fixture
def job(own: LocalCoordinator) -> Job:
    return own.job(job="j", config=limiting_lag(LAG))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "checkpoint", VirtualClock())


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (DEST, QueryChoices.of("departed_at", "origin"), "substream=['dest'], and not with event_time='departed_at'"),
        (DEST, QueryChoices.of("departed_at", ["dest", "origin"]), "replaces_substreams=True"),
        (DEST, QueryChoices.of("departed_at", None), "substream=None"),
        (DEST, QueryChoices.of("departed_at", SOURCE_PARTITION), "substream=SOURCE_PARTITION"),
        (DEST, QueryChoices.of("landed_at", "dest"), "event_time='landed_at'"),
        (DEST, WINDOWS, "no windows, and not with windows(10, 10, 0).agg('dest', flights)"),
        (WINDOWS, DEST, "new checkpoint"),
        (WINDOWS, QueryChoices.of("departed_at", "dest", (20, 10, 0), (("dest",), ("flights",))), "windows(20, 10, 0)"),
        (WINDOWS, QueryChoices.of("departed_at", "dest", (10, 10, 0), (("dest",), ("delay",))), "agg('dest', delay)"),
        (
            WINDOWS,
            QueryChoices.of("landed_at", "dest", (10, 10, 0), (("dest",), ("flights",))),
            "agg('dest', flights) of 'landed_at'",
        ),
    ],
)
def test_another_choice_is_refused_with_the_remedy(
    runs: Runs, job: Job, before: QueryChoices, now: QueryChoices, said: str
) -> None:
    """Before anything is sent; and what the query had goes on."""
    run = runs.run(job, choices=before)
    run.batch(0, HNL=100_000)
    with pytest.raises(InvalidUsage) as refused:
        runs.run(job, choices=now)
    assert said in str(refused.value)
    runs.run(job, choices=before).batch(1, HNL=110_000)
    assert job.status()["max_event_time"] == 110_000


def test_windows_of_another_event_time_are_not_replaced() -> None:
    """Substreams can be; windows that are kept would be mixed with others."""
    now = QueryChoices.of("landed_at", "dest", (10, 10, 0), (("dest",), ("flights",)))
    with pytest.raises(InvalidUsage, match="cannot be turned into others"):
        now.check(WINDOWS, replaces_substreams=True)


def test_substreams_are_replaced_if_the_user_says_so(runs: Runs, job: Job) -> None:
    """Those before no longer hold the watermark; names that both have go on."""
    runs.run(job, choices=DEST).batch(0, HNL=100_000, BOS=200_000)
    now = QueryChoices.of("departed_at", "origin")
    run = runs.run(job, choices=now, replaces_substreams=True)
    run.batch(1, JFK=300_000, BOS=250_000)
    states = {row["substream"]: row["state"] for row in job.substreams()}
    assert states == {"HNL": "idle", "BOS": "active", "JFK": "active"}
    assert job.status()["watermark"] == 240_000
    # The choice is kept: the next start is an ordinary one, and a lost job is restored without the old ones.
    runs.run(job, choices=now).batch(2, JFK=310_000)
    assert asdict(now) == Checkpoint(str(runs.directory)).read("choices")


def test_what_earlier_runs_left_is_reported_before_substreams_are_replaced(runs: Runs, own: LocalCoordinator) -> None:
    """A report makes its substream count again: it would hold the watermark after all."""
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


def test_a_checkpoint_of_an_older_version_takes_the_choice_over(runs: Runs, job: Job) -> None:
    runs.run(job).batch(0, HNL=100_000)
    runs.run(job, choices=DEST).batch(1, HNL=110_000)
    with pytest.raises(InvalidUsage):
        runs.run(job, choices=QueryChoices.of("departed_at", "origin"))


def test_where_the_checkpoint_is_seen_by_the_hook_alone_it_refuses(runs: Runs, job: Job) -> None:
    """Under Spark Connect: the client cannot read it."""
    runs.run(job, choices=DEST).batch(0, HNL=100_000)
    elsewhere = runs.run(job, choices=QueryChoices.of("departed_at", "origin"), owns_files=False)
    with pytest.raises(InvalidUsage, match="would hold the watermark for ever"):
        elsewhere.begin(1)
