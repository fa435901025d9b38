"""The roles that the docstring of each method of a job states are those that the coordinator accepts."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.clock import VirtualClock
from tests.support.drivers import Runs
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark import Job, Refused, limiting_lag
from tidegate_spark.testing import CoordinatorProcess

CONFIG = limiting_lag(timedelta(0))
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "manage.md").read_text()


def methods() -> dict[str, str]:
    """Return the docstrings of the public methods of a job."""
    return {
        name: inspect.getdoc(method) or ""
        for name, method in inspect.getmembers(Job, inspect.isfunction)
        if not name.startswith("_")
    }


def stated(docstring: str) -> set[str]:
    """Return the roles that a docstring states."""
    [text] = re.findall(r"^Role of the key: (.*)\.$", docstring, re.MULTILINE)
    return {role.value for role in Role} if text == "any" else set(re.findall(r"``(\w+)``", text))


@dataclass
class Guarded:
    """A coordinator with one key for each role, and the checkpoint of a query."""

    process: CoordinatorProcess
    keys: dict[str, str]
    directory: Path

    def job(self, role: str, job: str = "j") -> Job:
        return self.process.job(job=job, key=self.keys[role], config=CONFIG)

    def query(self, role: str) -> None:
        """Run a batch and a heartbeat of a query without Spark. Each role has its own job and checkpoint."""
        self.job("admin", f"of-{role}").ensure_job()
        run = Runs(self.directory / role, VirtualClock()).run(self.job(role, f"of-{role}"), declared=("a",))
        run.batch(0, a=1)
        run.beat(0)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    file = directory / "keys.json"
    keys = {role.value: keyring.create(file, f"key-{role}", role, "") for role in Role}
    with CoordinatorProcess(directory / "data", keys_file=str(file)) as process:
        yield Guarded(process, keys, directory)


CALLS: dict[str, Callable[[Job], object]] = {
    "ensure_job": lambda job: job.ensure_job(),
    "configure": lambda job: job.configure(CONFIG),
    "declare": lambda job: job.declare("q", ["a"]),
    "idle": lambda job: job.idle("q", ["a"]),
    "done": lambda job: job.done("q", ["a"]),
    "evict": lambda job: job.evict("q", ["a"]),
    "restore": lambda job: job.restore("q", ["a"], [5]),
    "hand_over": lambda job: job.hand_over("q", "r"),
    "retire": lambda job: job.retire("q"),
    "hold": lambda job: job.hold(5, "a test"),
    "release": lambda job: job.release("h"),
    "complete": lambda job: job.complete(),
    "reopen": lambda job: job.reopen(),
    "reset": lambda job: job.reset(),
    "delete": lambda job: job.delete(),
    "status": lambda job: job.status(),
    "wait": lambda job: job.wait(5, timedelta(0)),
    "watch": lambda job: next(job.watch()),
    "explain": lambda job: job.explain(),
    "history": lambda job: job.history(),
    "completeness": lambda job: job.completeness(),
    "late": lambda job: job.late(),
    "queries": lambda job: job.queries(),
    "offsets": lambda job: job.offsets("q"),
    "wait_for_offsets": lambda job: job.wait_for_offsets("q", {"t": {0: 1}}, timedelta(0)),
    "substreams": lambda job: job.substreams(),
    "frames": lambda job: job.frames(),
    "holders": lambda job: job.holders(),
    "consumers": lambda job: job.consumers(),
    "forget_consumer": lambda job: job.forget_consumer("airflow"),
    "frame": lambda job: job.frame(0),
    "wait_for_frame": lambda job: job.wait_for_frame(0, timedelta(0)),
    "metrics": lambda job: job.metrics(),
}
QUERIES = {"stream", "with_watermark"}
"""Methods whose queries call the coordinator."""


def is_allowed(call: Callable[[], object]) -> bool:
    """Make a call, and return whether the role of the key allows it. The coordinator may refuse it otherwise."""
    try:
        call()
    except Refused as refusal:
        return refusal.code != "role_not_allowed"
    return True


@pytest.mark.parametrize("role", [role.value for role in Role])
@pytest.mark.parametrize("method", [name for name in methods() if name not in QUERIES])
def test_a_method_needs_the_stated_roles(guarded: Guarded, method: str, role: str) -> None:
    guarded.job("admin").ensure_job()  # another test may have deleted it
    assert is_allowed(lambda: CALLS[method](guarded.job(role))) == (role in stated(methods()[method]))


@pytest.mark.parametrize("role", [role.value for role in Role])
def test_a_query_needs_the_stated_roles(guarded: Guarded, role: str) -> None:
    for method in QUERIES:
        assert stated(methods()[method]) == {"report", "admin"}
    assert is_allowed(lambda: guarded.query(role)) == (role in {"report", "admin"})


def test_a_report_key_cannot_operate() -> None:
    """The key of a Spark job can neither end queries or the input, nor change the configuration."""
    for method in ("hand_over", "retire", "complete", "configure", "evict", "hold", "reset", "delete"):
        assert "report" not in stated(methods()[method])


def test_the_guide_lists_the_methods_by_role() -> None:
    """The table in `docs/how-to/manage.md` lists all methods, with the roles that the docstrings state."""
    table = PAGE[PAGE.index("| role of the key | methods |") :].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    for line in table.splitlines()[2:]:
        roles, names = line.strip("|").split("|")
        found = set(re.findall(r"`(\w+)`", roles)) or {role.value for role in Role}
        listed |= dict.fromkeys(re.findall(r"`(\w+)", names), found)
    assert listed == {name: stated(docstring) for name, docstring in methods().items()}
