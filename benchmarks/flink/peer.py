"""Flink on the replay: the Java job in ``java/``, in a process with the jars of ``apache-flink-libraries``.

The job paces the landings, because Flink's idleness follows the clock of the machine. The job is in Java, because
PyFlink cannot define a source with a watermark for each destination.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flink.replay import HOUR_MS, Outcome, Replay

REPLAY_S = 30
"""Duration of the replay of seven days."""
STARTED_AND_ENDED_IN_S = 120
SOURCES = Path(__file__).parent / "java"
RELEASE = "17"
"""Release of Java for which the job is compiled. Flink 2.3 also supports 21."""


@dataclass(frozen=True, slots=True)
class Case:
    """A watermark strategy of Flink.

    Attributes:
        name: Name of the case.
        per_destination: Whether each destination has its own watermark.
        idle_ms: Time without landings after which a destination is idle; None if never.
        wall_clock_lag_ms: Highest distance of the watermark behind the clock; None if there is none.
    """

    name: str
    per_destination: bool = True
    idle_ms: int | None = None
    wall_clock_lag_ms: int | None = None

    @property
    def argument(self) -> str:
        """The argument of the job for this case."""
        watermarks = "destination" if self.per_destination else "all"
        return f"{watermarks},{self.idle_ms or 0},{self.wall_clock_lag_ms or 0}"


class Flink:
    """The compiled job and the flights.

    Args:
        out: Directory of the classes, the flights and the logs.
        replay: The flights.
        lag_ms: Distance of a watermark behind the highest event time.

    Raises:
        SystemExit: If Flink or a Java compiler is not installed.
    """

    def __init__(self, out: Path, replay: Replay, lag_ms: int) -> None:
        self._out, self._replay, self._lag_ms = out, replay, lag_ms
        self._java, self._classes = _java_tool("java"), out / "classes"
        self._jars = _jars()
        (out / "tmp").mkdir(parents=True, exist_ok=True)
        self._flights = out / "flights.tsv"
        with open(self._flights, "w") as file:
            file.writelines(f"{one.destination}\t{one.departed_ms}\t{one.landed_ms}\n" for one in replay.flights)
        sources = sorted(str(path) for path in SOURCES.glob("*.java"))
        compiler = [_java_tool("javac"), "--release", RELEASE, "-d", str(self._classes), "-cp", self._jars, *sources]
        subprocess.run(compiler, check=True)

    def measure(self, cases: Sequence[Case]) -> list[Outcome]:
        """Run all cases at once in one process, and return their outcomes in this order.

        Raises:
            RuntimeError: If the job fails, or rows are neither in a window nor lost.
        """
        log, found = self._out / "flink.log", self._out / "closed.tsv"
        replay = self._replay
        command = [self._java, f"-Djava.io.tmpdir={self._out / 'tmp'}", "-cp", f"{self._classes}:{self._jars}"]
        command += ["Replay", str(self._flights), str(replay.start_ms), str(replay.end_ms), str(REPLAY_S)]
        command += [str(self._lag_ms), str(HOUR_MS), *(case.argument for case in cases)]
        with open(log, "w") as errors, open(found, "w") as lines:
            ended = subprocess.run(
                command, stdout=lines, stderr=errors, timeout=REPLAY_S + STARTED_AND_ENDED_IN_S, check=False
            )
        if ended.returncode:
            raise RuntimeError(f"Flink ended with status {ended.returncode}: expected 0; read its log in {log}.")
        with open(found) as lines:
            return outcomes(lines, replay, len(cases))


def outcomes(lines: Iterable[str], replay: Replay, cases: int) -> list[Outcome]:
    """Return the outcomes of all cases from the output of the job, which ``Replay.java`` describes.

    Raises:
        RuntimeError: If rows are neither in a window nor lost.
    """
    closed_ms: list[dict[int, int]] = [{} for _ in range(cases)]
    lost, rows = [0] * cases, [0] * cases
    for kind, case, *numbers in (line.split() for line in lines):
        number = int(case)
        if kind == "lost":
            lost[number] += 1
            continue
        end_ms, at_ms, counted = map(int, numbers)
        closed_ms[number][end_ms] = min(at_ms, replay.end_ms)
        rows[number] += counted
    for number in range(cases):
        if lost[number] + rows[number] != len(replay.flights):
            raise RuntimeError(
                f"Flink, case {number}: expected {len(replay.flights)} rows, found {rows[number]} in windows and "
                f"{lost[number]} lost."
            )
    return [Outcome(*found) for found in zip(lost, closed_ms, strict=True)]


def _jars() -> str:
    environment = Path(sys.prefix) / "flink"
    found = list(environment.glob("lib/python*/site-packages/pyflink/lib"))
    if not found:
        raise SystemExit(f"Flink is not installed: expected {environment}; run make bench BENCH=flink.")
    return f"{found[0]}/*"


def _java_tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin" if home else None)
    if found is None:
        raise SystemExit(
            f"{name} is missing: expected a JDK ({RELEASE} or 21) in JAVA_HOME, or on the PATH without JAVA_HOME; "
            "on Debian, run apt-get install openjdk-17-jdk-headless."
        )
    return found
