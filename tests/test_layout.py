"""Imports point one way, and the two distributions know each other only by the API."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mutants.__main__ import MUTANTS
from mutants.mutant import Mutant

ROOT = Path(__file__).parents[1]
SERVICE = ROOT / "service" / "src" / "tidegate"
CLIENT = ROOT / "spark_client" / "src" / "tidegate_spark"

# What each part of the service may import beside itself and LEAVES. Parts that are not listed are wiring: they put the
# service together, and no part may import them.
FACES = ("cli", "page", "api")
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "store": {"domain"},
    "reads": {"store", "domain"},
    "auth": {"store", "domain"},
    "runtime": {"auth", "store", "domain"},
    "web": {"reads", "runtime", "auth", "store", "domain"},
    **{face: {"web", "reads", "runtime", "auth", "store", "domain"} for face in FACES},
}
LEAVES = {"settings", "times", "escapes"}
"""Modules that import nothing of the service."""
WIRING = ("__main__", "server", "app")
"""The entry points, the process and the application, top to bottom: the only modules that import faces."""


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


def part_of(module: str) -> str:
    """The part of the service that a module belongs to; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def modules() -> dict[str, Path]:
    """The modules of the service by name."""
    named = {}
    for file in files(SERVICE):
        parts = file.relative_to(SERVICE.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return named


MODULES = modules()


def imported_modules(file: Path) -> set[str]:
    """The modules of the service that a file imports, also within functions and for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found & MODULES.keys()


@pytest.mark.parametrize("module", MODULES)
def test_the_service_imports_downwards(module: str) -> None:
    """The machine must be readable without the web, and each face replaceable without the others."""
    part = part_of(module)
    for other in imported_modules(MODULES[module]):
        target = part_of(other)
        if part in WIRING:
            assert target not in WIRING[: WIRING.index(part)], f"{module} imports {other}"
        elif target not in ("", part, *LEAVES):
            assert part not in LEAVES and target in MAY_IMPORT[part], f"{module} imports {other}"


def test_no_face_imports_another() -> None:
    """What two faces need is below them; `serve` and `openapi`, which need all faces, are wiring and not of the CLI."""
    for face in FACES:
        assert not MAY_IMPORT[face] & {*FACES, *WIRING}
    assert {part_of(module) for module in MODULES} == {"", *MAY_IMPORT, *LEAVES, *WIRING}


def test_the_service_has_no_circle_of_imports() -> None:
    """Neither of parts nor of modules, also not one that local imports or `TYPE_CHECKING` hide."""
    tuple(TopologicalSorter(MAY_IMPORT).static_order())
    graph = {module: imported_modules(file) - {module} for module, file in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", files(SERVICE / "reads"), ids=lambda file: file.name)
def test_views_need_no_web_framework(file: Path) -> None:
    """The command line and programs read them, too."""
    assert not {module.split(".")[0] for module in imported(file)} & {"fastapi", "starlette", "uvicorn"}


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
