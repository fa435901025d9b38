"""Reports of 100 substreams to the coordinator and to PostgreSQL, with an upsert per substream and a minimum by index.

PostgreSQL comes from Debian's package. Like the embedded Valkey, it may lose the changes of the last second. The table
has room for updates within its pages. The endpoint is a FastAPI route with 16 prepared connections, so the ratio of the
rates includes the difference between the endpoints. The ratio of the stores' processor times excludes it.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.paired import interleave
from benchmarks.peers import serving
from benchmarks.reports import Cell, Server
from benchmarks.results import Row, Spread, ratios
from tidegate_spark.testing import CoordinatorProcess

OURS, POSTGRES, AGAIN = "coordinator", "PostgreSQL", "PostgreSQL again"
LOAD = Cell("", 100, 16)
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "512MB",
    "synchronous_commit": "off",
    "wal_writer_delay": "1s",
    "checkpoint_timeout": "15min",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "5s",
    "autovacuum_vacuum_cost_delay": "0",
    "jit": "off",
}


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise SystemExit("PostgreSQL is not installed: expected /usr/lib/postgresql; run apt-get install postgresql.")
    return found[-1]


@contextmanager
def postgres() -> Iterator[tuple[str, psutil.Process]]:
    """Run PostgreSQL on a socket in a new directory; yield the directory and the process.

    PostgreSQL refuses to run as root, so the package's user runs it for root.
    """
    binaries, directory = _binaries(), Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    shutil.chown(directory, user)
    data = directory / "data"
    initialise: list[str | Path] = [
        binaries / "initdb",
        "--pgdata",
        data,
        "--username",
        "bench",
        "--auth",
        "trust",
        "--encoding",
        "UTF8",
    ]
    subprocess.run(initialise, check=True, user=user, capture_output=True)
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    command: list[str | Path] = [binaries / "postgres", "-D", data, "-k", directory, *settings]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, user=user, stdout=log, stderr=log)
    try:
        _await(binaries, directory)
        yield str(directory), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(directory)


def _await(binaries: Path, directory: Path) -> None:
    for _ in range(300):
        if subprocess.run([binaries / "pg_isready", "--quiet", "-h", directory], check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise SystemExit("PostgreSQL did not start:\n" + (directory / "log").read_text())


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure the coordinator and PostgreSQL in each round."""
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(out / f"postgres-{time.time_ns()}"))
        directory, database = stack.enter_context(postgres())
        url, pid = stack.enter_context(serving("postgres_app", POSTGRES=directory))
        ours = Server("ours", coordinator.url, coordinator.pid, coordinator)
        theirs = Server("theirs", url, pid, None, store=database)
        servers = {OURS: ours, POSTGRES: theirs, AGAIN: theirs}
        measurements = {name: partial(server.measure, LOAD) for name, server in servers.items()}
        costs = interleave(measurements, rounds, show)
    rates = {name: [cost.rate for cost in found] for name, found in costs.items()}
    stores = {name: [cost.store_us for cost in found] for name, found in costs.items()}
    return [
        Row("rate, k=100: PostgreSQL again / PostgreSQL (control)", ratios(rates[AGAIN], rates[POSTGRES])),
        Row("rate, k=100: coordinator / PostgreSQL", ratios(rates[OURS], rates[POSTGRES]), at_least=5),
        Row("processor time, k=100: PostgreSQL / Redis", ratios(stores[POSTGRES], stores[OURS])),
        Row("reports per second, k=100: PostgreSQL", Spread.of(rates[POSTGRES]), "/s"),
        Row("processor time, k=100: PostgreSQL", Spread.of(stores[POSTGRES]), "us"),
    ]
