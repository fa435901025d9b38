"""``kill -9`` of a driver, once per kind of pipeline: the results equal those of a run without a crash.

Tests within one process cover all points of a batch (``tests/faults``, ``tests/client/test_crash_points.py``).
"""

from pathlib import Path
from typing import Any

from tests.support.clusters import connect_server, standalone
from tests.support.pipeline import LAG, SCHEMA, Settings
from tests.support.points import AFTER_SPARKS_COMMIT, IN_THE_FUNCTION
from tests.support.ports import listens
from tests.support.runs import calls, run, started
from tests.support.waiting import until
from tidegate_spark import Job, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches

CONF: dict[str, Any] = {
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.python.authenticate.socketTimeout": "300s",
}
TIMES = (100_000, 110_000, 120_000, 130_000)


def fill(directory: Path) -> None:
    """Write batches of two substreams. Every batch except the first one has a late row."""
    source = FileBatches(directory / "input", SCHEMA)
    for batch, t in enumerate(TIMES):
        late = [{"k": "a", "t": t - 25_000}] if batch else []
        source.add({"k": "a", "t": t}, {"k": "b", "t": t}, *late)


def log_of(directory: Path) -> str:
    return (directory / "pipeline.log").read_text()


def settings_of(job: Job, session: str, directory: Path, **more: Any) -> Settings:
    conf = {} if session.startswith("sc://") else CONF
    coordinator = job.connection
    return Settings(session, coordinator.url, coordinator.job, str(directory), conf=conf, **more)


def kill_and_run_again(settings: Settings) -> None:
    """Run a pipeline until it kills itself, then run it again to the end of its input."""
    assert run(settings) < 0, log_of(Path(settings.directory))
    settings.die = None
    assert run(settings) == 0, log_of(Path(settings.directory))


def check_rows(directory: Path, job: Job, killed: int) -> None:
    """Check that all attempts of a batch got the same rows, that the killed one had two, and that rows count once."""
    given: dict[tuple[str, int], list[tuple[int | None, list[Any]]]] = {}
    for call in calls(directory):
        given.setdefault((call.kind, call.batch), []).append((call.pinned_watermark, call.rows))
    assert all(attempt == attempts[0] for attempts in given.values() for attempt in attempts)
    assert [len(given["on_time", batch]) for batch in range(len(TIMES))] == [
        1 + (batch == killed) for batch in range(len(TIMES))
    ]
    for batch, t in enumerate(TIMES):
        pinned_watermark, rows = given["on_time", batch][0]
        assert (pinned_watermark, rows) == (TIMES[batch - 1] - 10_000 if batch else None, [["a", t], ["b", t]])
    rows = job.status()["rows"]
    assert rows == {"on_time": 8, "updated": 0, "late": 3, "null_event_time": 0, "future": 0}


def test_a_killed_driver_with_a_function(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """The driver is killed after its reports and its function, before the commit."""
    fill(tmp_path)
    job = tidegate.job(config=limiting_lag(LAG))
    settings = settings_of(job, "local[2]", tmp_path, die="before the commit", of=2)
    kill_and_run_again(settings)
    check_rows(tmp_path, job, killed=2)


def test_a_killed_driver_on_a_standalone_cluster(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """The executors are separate processes, which end later than the driver."""
    fill(tmp_path)
    job = tidegate.job(config=limiting_lag(LAG))
    with standalone(tmp_path) as master:
        settings = settings_of(job, master, tmp_path, die=IN_THE_FUNCTION, of=2)
        kill_and_run_again(settings)
    check_rows(tmp_path, job, killed=2)


def test_a_killed_connect_server(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """Under Spark Connect the hook runs in the server, which is killed with all its processes."""
    fill(tmp_path)
    job = tidegate.job(config=limiting_lag(LAG))
    with connect_server(tmp_path, CONF) as session:
        port = int(session.rpartition(":")[2])
        # The block kills the client, which would call the dead server for minutes.
        with started(settings_of(job, session, tmp_path, die=IN_THE_FUNCTION, of=2)):
            until(lambda: not listens(port), "the server has ended", 120)
    with connect_server(tmp_path, CONF) as session:
        assert run(settings_of(job, session, tmp_path)) == 0, log_of(tmp_path)
    check_rows(tmp_path, job, killed=2)


def test_a_killed_driver_with_windows(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """The driver is killed after it has written the state of a batch and before it emits the windows."""
    source = FileBatches(tmp_path / "input", SCHEMA)
    for t in (1000, 2000, 25_000, 3000, 45_000):
        source.add({"k": "a", "t": t})
    job = tidegate.job(config=limiting_lag(LAG))
    settings = settings_of(job, "local[2]", tmp_path, windows=10_000, die="after the state", of=2)
    kill_and_run_again(settings)
    given = [(call.kind, call.batch, [row[1:] for row in call.rows]) for call in calls(tmp_path)]
    assert given == [
        ("on_time", 2, [["a", 2, 2000, None]]),
        ("on_time", 3, [["a", 3, 3000, [2, 2000]]]),
        ("on_time", 4, [["a", 1, 25_000, None]]),
    ]


def test_a_killed_driver_of_native_windows(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """The driver is killed after Spark has committed a batch, possibly before the coordinator has its report."""
    source = FileBatches(tmp_path / "input", SCHEMA)
    for t in (11_000, 25_000, 45_000, 46_000, 47_000):
        source.add({"k": "a", "t": t}, {"k": "a", "t": 12_000})
    job = tidegate.job(config=limiting_lag(LAG))
    settings = settings_of(job, "local[2]", tmp_path, windows=10_000, native=True, die=AFTER_SPARKS_COMMIT, of=2)
    kill_and_run_again(settings)
    windows = {tuple(row) for call in calls(tmp_path) for row in call.rows}
    assert len({window[:2] for window in windows}) == len(windows), "all emissions of a window must have the same count"
    assert ("a", 20_000, 1) in windows
    rows = job.status()["rows"]
    assert rows["on_time"] + rows["late"] == 10
