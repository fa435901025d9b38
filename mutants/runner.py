"""The runner of mutants: it copies the repository, runs tests in the copy, and decides whether they caught a mutant."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mutants.mutant import Mutant, MutantError

SOURCES = ("service/src", "spark_client/src", ".")
BASELINE_TIMEOUT_S = 900
TIMEOUT_S = 180
STOP_TIMEOUT_S = 20
SEARCH_S = 60
"""Time in which the simulation must find a mutant, on one core."""

OPTIONS = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly")

_VIOLATION = re.compile(r"^Seed (\d+) after ([0-9.]+) s: (.*)\.$", re.MULTILINE)
_SIMULATION = ("tests.simulation", "--no-shrinking")
_FAILED = re.compile(r"^FAILED (\S+?\.py::.+?)(?: - (.*))?$", re.MULTILINE)
# An import error in a subprocess or a library that Redis cannot load: the mutant breaks the program, not a guarantee.
_BROKEN = ("NameError", "ImportError", "ModuleNotFoundError", "AttributeError", "CoordinatorFailed", "ResponseError")
_PROBE = "import tidegate, tidegate_spark; print(tidegate.__file__, tidegate_spark.__file__, sep='\\n')"


@dataclass(frozen=True)
class Run:
    """The result of a run of pytest; ``status`` is the exit status, or None after a timeout."""

    status: int | None
    output: str
    seconds: float

    def first_failure(self) -> tuple[str, str] | None:
        """Return the first failed test and the reason; None if no test failed."""
        found = _FAILED.search(self.output)
        return None if found is None else (found[1], found[2] or "")

    def end(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.output.strip().splitlines()[-15:])


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant: the ``test`` that caught it, or the error in ``detail``."""

    mutant: Mutant
    verdict: Literal["caught", "survived", "error"]
    seconds: float
    test: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a search by the simulation.

    Attributes:
        mutant: The mutant.
        seconds: Duration of the search, on one core.
        seed: The seed that found the defect; None if no seed did.
        violation: The violation.
        detail: Why the search proves nothing; empty if it was in order.
    """

    mutant: Mutant
    seconds: float
    seed: int | None = None
    violation: str = ""
    detail: str = ""


class Copy:
    """A copy of the tracked files, including their uncommitted changes."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder.resolve()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():  # git also lists deleted files
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.folder / source) for source in SOURCES),
            "PYTHONDONTWRITEBYTECODE": "1",  # a cached module could hide a change within one second
            "CI": "true",  # Hypothesis draws the same examples each time, and pytest does not cut its summary
        }

    def check_imports(self) -> None:
        """Raise MutantError unless Python imports both packages from the copy."""
        found = subprocess.run(
            [sys.executable, "-c", _PROBE],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n")
        for file in filter(None, found):
            if not Path(file).is_relative_to(self.folder):
                raise MutantError(f"Tests would import {file}: expected a file in {self.folder}; check PYTHONPATH.")

    def pytest(self, tests: Iterable[str], timeout_s: float) -> Run:
        """Run tests in the copy up to the first failure."""
        return self._run(["pytest", *OPTIONS, *tests], timeout_s)

    def _run(self, arguments: Iterable[str], timeout_s: float) -> Run:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        status: int | None
        try:
            output, _ = process.communicate(timeout=timeout_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            output, status = _stop(process), None
        return Run(status, output, time.monotonic() - began)

    def check_baseline(self, tests: Iterable[str]) -> float:
        """Run the tests without a mutant and return the seconds that they took.

        Raises:
            MutantError: If a test failed or could not run.
        """
        run = self.pytest(tests, BASELINE_TIMEOUT_S)
        if run.status != 0:
            raise MutantError(
                f"Without a mutant, pytest ended with {run.status}: expected 0; fix these tests first.\n{run.end()}"
            )
        return run.seconds

    def outcome(self, mutant: Mutant) -> Outcome:
        """Apply a mutant, run its tests, and undo it."""
        with mutant.applied(self.folder):
            return judge(mutant, self.pytest(mutant.tests, TIMEOUT_S))

    def search(self, mutant: Mutant) -> Found:
        """Apply a mutant, run the simulation until it finds a violation or a minute has passed, and undo the mutant."""
        with mutant.applied(self.folder):
            run = self._run([*_SIMULATION, "--minutes", str(SEARCH_S / 60)], 5 * SEARCH_S)
        violation = _VIOLATION.search(run.output)
        if violation is not None:
            without = self._run([*_SIMULATION, "--first", violation[1], "--seeds", "1"], SEARCH_S)
            detail = "" if without.status == 0 else f"the seed has a violation without the mutant:\n{without.end()}"
            return Found(mutant, float(violation[2]), int(violation[1]), violation[3], detail)
        return Found(mutant, run.seconds, detail="" if run.status == 0 else run.end())


def _stop(process: "subprocess.Popen[str]") -> str:
    """Stop pytest and return its output. After SIGINT, pytest still stops the servers that its tests started."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=STOP_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def judge(mutant: Mutant, run: Run) -> Outcome:
    """Decide whether the tests caught a mutant: pytest must end with status 1, and a test must have failed."""
    failure = run.first_failure()
    if run.status == 0:
        return Outcome(mutant, "survived", run.seconds)
    if run.status is None:
        return Outcome(mutant, "error", run.seconds, detail=f"the tests took longer than {TIMEOUT_S} s")
    if run.status != 1 or failure is None:
        return Outcome(mutant, "error", run.seconds, detail=f"pytest ended with {run.status}:\n{run.end()}")
    test, reason = failure
    if any(name in reason.partition(":")[0] for name in _BROKEN):
        return Outcome(mutant, "error", run.seconds, detail=f"the mutant breaks the program: {reason}")
    return Outcome(mutant, "caught", run.seconds, test)
