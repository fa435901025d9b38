"""``python -m tests.summary``: print the results of the tiers that ran, their slowest tests and the coverage."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "out" / "test"
SLOWEST = 10


@dataclass(frozen=True)
class Tier:
    """The result of one run of pytest.

    Attributes:
        name: ``default`` or ``rest``.
        tests: Number of tests.
        failed: Tests that failed or had an error.
        skipped: Tests that were skipped.
        seconds: Wall-clock time.
        slowest: Seconds and names of the slowest tests.
    """

    name: str
    tests: int
    failed: int
    skipped: int
    seconds: float
    slowest: list[tuple[float, str]]

    @property
    def passed(self) -> int:
        return self.tests - self.failed - self.skipped

    @classmethod
    def read(cls, file: Path) -> "Tier":
        """Read the JUnit file of a run."""
        [suite] = ET.parse(file).getroot().iter("testsuite")  # noqa: S314 - our own file
        cases = [
            (float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}")
            for case in suite.iter("testcase")
        ]
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        seconds = float(suite.get("time", 0))
        return cls(
            file.stem, number["tests"], failed, number["skipped"], seconds, sorted(cases, reverse=True)[:SLOWEST]
        )


def coverage() -> list[tuple[str, float, float]]:
    """Return the shares of covered lines and branches by package; an empty list if coverage was not measured."""
    if not (ROOT / ".coverage").exists():
        return []
    command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"]
    files = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)["files"]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, measured in files.items():
        parts = Path(name).parts
        package = ".".join(parts[parts.index("src") + 1 : -1][:2])
        totals = measured["summary"]
        for at, member in enumerate(("covered_lines", "num_statements", "covered_branches", "num_branches")):
            sums[package][at] += totals[member]
    return [
        (package, lines / max(1, all_lines), branches / max(1, all_branches))
        for package, (lines, all_lines, branches, all_branches) in sorted(sums.items())
    ]


def main() -> int:
    """Print the summary and return 1 if a test failed or no results exist."""
    tiers = [Tier.read(file) for file in sorted(RESULTS.glob("*.xml"))]
    if not tiers:
        print(f"No results in {RESULTS}; run make test first.", file=sys.stderr)
        return 1
    for package, lines, branches in coverage():
        print(f"coverage  {package:32} lines {lines:6.1%}  branches {branches:6.1%}")
    for tier in tiers:
        for seconds, name in tier.slowest:
            print(f"slowest   {tier.name:8} {seconds:6.1f} s  {name}")
    for tier in tiers:
        print(
            f"{tier.name:8} {tier.tests:5} tests in {tier.seconds:5.0f} s: {tier.failed} failed, {tier.skipped} skipped"
        )
    failed, skipped = sum(tier.failed for tier in tiers), sum(tier.skipped for tier in tiers)
    print(f"{sum(tier.passed for tier in tiers)} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
