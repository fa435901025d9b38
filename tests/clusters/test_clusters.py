"""One program on several kinds of Spark: a local cluster, a standalone cluster and Spark Connect."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.support.clusters import connect_server, standalone
from tests.support.pipeline import QUERY, SCHEMA, Settings
from tests.support.runs import calls, environment, run
from tidegate_spark.testing import CoordinatorProcess, FileBatches

CONF: dict[str, Any] = {
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.task.maxFailures": 4,
    "spark.python.authenticate.socketTimeout": "60s",
}
SPECULATION = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.quantile": 0.5,
}


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Spark Connect server for all tests of this file; yield its address."""
    if pyspark.__version__.startswith("3."):
        pytest.skip("needs Spark 4.0")
    with connect_server(tmp_path_factory.mktemp("connect"), CONF) as address:
        yield address


@pytest.fixture
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Start a Spark of the requested kind; yield its address."""
    if request.param == "standalone":
        with standalone(tmp_path) as master:
            yield master
    elif request.param == "connect":
        yield request.getfixturevalue("connect")
    else:
        yield request.param


@pytest.mark.parametrize(
    ("session", "tasks"),
    [
        pytest.param("standalone", {"fails": "failed", "stalls": "stalled overtaken"}, id="standalone"),
        pytest.param("connect", {}, id="connect"),
    ],
    indirect=["session"],
)
def test_it_is_the_same_everywhere(
    tidegate: CoordinatorProcess, tmp_path: Path, session: str, tasks: dict[str, str]
) -> None:
    """On the standalone cluster, one task fails and is retried, and another one stalls and is run speculatively."""
    marks = tmp_path / "marks"
    marks.mkdir()
    job = tidegate.job()
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path))
    if not session.startswith("sc://"):
        settings.conf = CONF
    if tasks:
        settings.conf = CONF | SPECULATION
        settings.flaky = str(marks)
    names = ("a", "b", *tasks)
    source = FileBatches(tmp_path / "input", SCHEMA)
    for batch in range(3):
        t = 100_000 + batch * 10_000
        source.add(*({"k": k, "t": t} for k in names), {"k": "a", "t": 90_000 - batch})
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    source.add({"k": "a", "t": 140_000}, {"k": "b", "t": 109_999}, {"k": None, "t": None})
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()

    assert {path.name.split("-")[0] for path in marks.iterdir()} == set(" ".join(tasks.values()).split())
    given = {(call.kind, call.batch): (call.pinned_watermark, call.rows) for call in calls(tmp_path)}
    assert len(given) == len(calls(tmp_path)), "each function must be called once per batch"
    assert given == {
        ("on_time", 0): (None, [["a", 90_000], *([k, 100_000] for k in names)]),
        ("on_time", 1): (90_000, [[k, 110_000] for k in names]),
        ("late", 1): (90_000, [["a", 89_999]]),
        ("on_time", 2): (100_000, [[k, 120_000] for k in names]),
        ("late", 2): (100_000, [["a", 89_998]]),
        ("on_time", 3): (110_000, [["a", 140_000]]),
        ("late", 3): (110_000, [[None, None], ["b", 109_999]]),
    }
    status = job.status()
    assert (status["watermark"], status["max_event_time"]) == (110_000, 140_000)
    on_time = 2 + 3 * len(names)
    assert status["rows"] == {"on_time": on_time, "updated": 0, "late": 3, "null_event_time": 1, "future": 0}
    assert sum(row["reported"] for row in job.substreams()) == on_time + 3
    assert [(known["query"], known["batch_id"], known["batch_open"]) for known in job.queries()] == [(QUERY, 3, False)]
    progress = [line for line in (tmp_path / "pipeline.log").read_text().splitlines() if line.startswith("q ")]
    assert len(progress) == (0 if session.startswith("sc://") else 4)  # under Connect, they are in the server's log


@pytest.mark.parametrize("session", ["connect"], indirect=True)
def test_substreams_become_idle_under_connect(tidegate: CoordinatorProcess, tmp_path: Path, session: str) -> None:
    """Under Spark Connect the listener's process sends the heartbeats, although the hook runs in another process."""
    job = tidegate.job()
    FileBatches(tmp_path / "input", SCHEMA).add({"k": "a", "t": 100_000}, {"k": "b", "t": 50_000})
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), until_idle=True)
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    assert job.status()["watermark"] == 90_000


@pytest.mark.parametrize("session", [pytest.param("connect", id="connect")], indirect=True)
def test_windows_are_emitted_under_connect(tidegate: CoordinatorProcess, tmp_path: Path, session: str) -> None:
    """Under Spark Connect the hook and the source that reads the watermark run in the server."""
    job = tidegate.job()
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), windows=10_000)
    source = FileBatches(tmp_path / "input", SCHEMA)
    for t in (1000, 2000, 25_000, 3000, 45_000):
        source.add({"k": "a", "t": t})
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    given = [(call.kind, call.batch, call.rows) for call in calls(tmp_path)]
    assert given == [
        ("on_time", 2, [[[0, 10_000], "a", 2, 2000, None]]),
        ("on_time", 3, [[[0, 10_000], "a", 3, 3000, [2, 2000]]]),
        ("on_time", 4, [[[20_000, 30_000], "a", 1, 25_000, None]]),
    ]


@pytest.mark.parametrize(
    ("session", "tasks"),
    [
        pytest.param("local-cluster[2,1,1024]", {"fails": "failed"}, id="local-cluster"),
        pytest.param("connect", {}, id="connect"),
    ],
    indirect=["session"],
)
def test_native_windows_are_the_same_on_each_spark(
    tidegate: CoordinatorProcess, tmp_path: Path, session: str, tasks: dict[str, str]
) -> None:
    """Retried tasks fold their rows again. The reader of the markers runs in the driver or in the Connect server."""
    job = tidegate.job()
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), windows=10_000, native=True)
    if tasks:
        (tmp_path / "marks").mkdir()
        settings.conf, settings.flaky = CONF, str(tmp_path / "marks")
    source = FileBatches(tmp_path / "input", SCHEMA)
    for t in (11_000, 25_000, 45_000, 46_000, 47_000):
        source.add({"k": "a", "t": t}, *({"k": k, "t": t} for k in tasks), {"k": "a", "t": 12_000})
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    if tasks:
        assert list((tmp_path / "marks").iterdir())
    windows = sorted(row for call in calls(tmp_path) for row in call.rows)
    # The batch with 45 s moves the watermark to 35 s. The next one has its marker, and the third one closes windows.
    assert windows == [
        ["a", 10_000, 6],
        ["a", 20_000, 1],
        *([k, start, 1] for k in tasks for start in (10_000, 20_000)),
    ]
    on_time = 10 + 5 * len(tasks)
    assert job.status()["rows"] == {"on_time": on_time, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}


@pytest.mark.parametrize("session", ["connect"], indirect=True)
def test_native_over_connect_needs_a_later_spark(tidegate: CoordinatorProcess, tmp_path: Path, session: str) -> None:
    """Before Spark 4.2, a client over Connect cannot detect single-batch runs."""
    if not pyspark.__version__.startswith(("4.0.", "4.1.")):
        pytest.skip("Spark runs it")
    job = tidegate.job()
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), windows=10_000, native=True)
    FileBatches(tmp_path / "input", SCHEMA).add({"k": "a", "t": 1000})
    assert run(settings) == 1
    assert "with_watermark() over Spark Connect needs Spark 4.2 or later" in (tmp_path / "pipeline.log").read_text()


@pytest.mark.parametrize("session", ["connect"], indirect=True)
def test_listeners_can_leave_while_events_wait(session: str) -> None:
    """The client of Spark Connect waits for ever if it removes its last listener itself."""
    command = [sys.executable, "-m", "tests.support.listening", session]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["listener", "0", "listener", "1", "listener", "2"]


@pytest.mark.parametrize("session", ["connect"], indirect=True)
def test_guarded_appends_need_a_classic_session(tidegate: CoordinatorProcess, tmp_path: Path, session: str) -> None:
    """Over Connect, Python cannot read the history of a table from Spark. The batch fails before it writes a row."""
    job, table = tidegate.job(), tmp_path / "table"
    settings = Settings(session, tidegate.url, job.connection.job, str(tmp_path), tables=[str(table)])
    FileBatches(tmp_path / "input", SCHEMA).add({"k": "a", "t": 1000})
    assert run(settings) == 1
    message = "write_once() and publish_watermark() need a classic session"
    assert message in (tmp_path / "pipeline.log").read_text()
    assert not table.exists()
