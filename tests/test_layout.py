"""Imports point one way, and the two distributions know each other only by the API."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mutants.__main__ import MUTANTS
from mutants.mutant import Mutant

ROOT = Path(__file__).parents[1]
SERVICE = ROOT / "service" / "src" / "tidegate"
CLIENT = ROOT / "spark_client" / "src" / "tidegate_spark"

# A package may import from itself and from those after it; app and settings wire and configure.
LAYERS = ["cli", "page", "api", "runtime", "auth", "store", "domain"]


def imported(file: Path) -> set[str]:
    """The modules that a file imports, as they are named there."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: say where it comes from"
            found.add(node.module or "")
    return found


def files(root: Path) -> list[Path]:
    listed = sorted(root.rglob("*.py"))
    assert listed
    return listed


@pytest.mark.parametrize("file", files(SERVICE), ids=lambda file: str(file.relative_to(SERVICE)))
def test_the_service_imports_downwards(file: Path) -> None:
    """The machine must be readable without the web, and the web replaceable without the machine."""
    layer = file.relative_to(SERVICE).parts[0]
    if layer not in LAYERS:
        return
    for module in imported(file):
        parts = module.split(".")
        if parts[0] == "tidegate" and len(parts) > 1 and parts[1] in LAYERS:
            assert LAYERS.index(parts[1]) >= LAYERS.index(layer), f"{layer} imports {module}"


@pytest.mark.parametrize("file", files(SERVICE / "domain"), ids=lambda file: file.name)
def test_the_domain_needs_nothing_but_python(file: Path) -> None:
    """It answers every what-if; it must run anywhere, and read no clock."""
    for module in imported(file):
        max_event_time = module.split(".")[0]
        assert module.startswith("tidegate.domain") or (
            max_event_time in sys.stdlib_module_names and max_event_time != "time"
        ), module


@pytest.mark.parametrize("file", files(CLIENT), ids=lambda file: str(file.relative_to(CLIENT)))
def test_the_client_knows_nothing_of_the_service(file: Path) -> None:
    """Executors must not need a web framework."""
    max_event_times = {module.split(".")[0] for module in imported(file)}
    assert not max_event_times & {"tidegate", "fastapi", "uvicorn", "pydantic", "redis", "examples"}


@pytest.mark.parametrize("distribution", ["service", "spark_client"])
def test_what_is_imported_is_a_declared_dependency(distribution: str) -> None:
    """A dependency that another one brings along may be gone with its next version."""
    project = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]
    extras = [name for group in project.get("optional-dependencies", {}).values() for name in group]
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("_", "-") for text in [*project["dependencies"], *extras]
    }
    distributions = packages_distributions()
    for file in files(ROOT / distribution / "src"):
        for max_event_time in {module.split(".")[0] for module in imported(file)} - set(sys.stdlib_module_names):
            names = {name.lower().replace("_", "-") for name in distributions.get(max_event_time, [max_event_time])}
            if max_event_time not in (
                "tidegate",
                "tidegate_spark",
                "pytest",
            ):  # the fixtures are loaded by pytest itself
                assert names & declared, f"{file.name} imports {max_event_time}, of {names}"


def test_the_service_knows_nothing_of_the_client() -> None:
    """The coordinator runs where there is no Spark."""
    for file in files(SERVICE):
        foreign = {"tidegate_spark", "pyspark"} | ({"pyarrow"} if file.name != "columns.py" else set())
        assert not {module.split(".")[0] for module in imported(file)} & foreign


def test_what_executors_import_stays_small() -> None:
    """The fold is unpickled in every Python worker; httpx alone would cost each of them 0.2 s."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tidegate_spark.protocol.reporter; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "tidegate_spark.protocol.reporter" in loaded
    assert not {module.split(".")[0] for module in loaded} & {"httpx", "pyspark", "pyarrow", "pandas"}


@pytest.mark.parametrize("file", files(ROOT / "tests"), ids=lambda file: str(file.relative_to(ROOT)))
def test_tests_share_helpers_by_way_of_support_only(file: Path) -> None:
    """A folder of tests that imports another one cannot be run, marked or moved by itself."""
    here = file.relative_to(ROOT / "tests").parts[0]
    for module in imported(file):
        parts = module.split(".")
        if parts[0] == "tests":
            assert parts[1] in ("support", here), f"{file} imports {module}"
            assert not parts[-1].startswith("test_"), f"{file} imports the tests of {module}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_can_be_applied(mutant: Mutant) -> None:
    """`make mutants` stops at a defect whose text is no longer in the code."""
    mutant.check(ROOT)
