"""Allowed imports between the parts of the service and between the two distributions."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICE = ROOT / "service" / "src" / "tidegate"
CLIENT = ROOT / "spark_client" / "src" / "tidegate_spark"
PROVIDER = ROOT / "integrations" / "airflow" / "src" / "tidegate_airflow"

# Parts that each part of the service may import, besides itself and LEAVES. Parts that are not listed are wiring, and
# no part may import them.
INTERFACES = ("cli", "page", "http.routes")
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "store": {"domain"},
    "views": {"store", "domain"},
    "auth": {"store", "domain"},
    "runtime": {"auth", "store", "domain"},
    "http": {"views", "runtime", "auth", "store", "domain"},
    "http.routes": {"http", "views", "runtime", "auth", "store", "domain"},
    "page": {"http", "views", "runtime", "auth", "store", "domain"},
    "cli": {"views", "runtime", "auth", "store", "domain"},
}
LEAVES = {"settings", "times", "escapes"}
"""Modules that import no other module of the service."""
WIRING = ("__main__", "server", "app")
"""The entry point, the process and the application, from top to bottom. Only these modules import interfaces."""


def imported(file: Path) -> set[str]:
    """Return the names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; use an absolute one"
            found.add(node.module or "")
    return found


def files(root: Path) -> list[Path]:
    listed = sorted(root.rglob("*.py"))
    assert listed
    return listed


def part_of(module: str) -> str:
    """Return the part of the service that a module belongs to; "" for the package itself."""
    if module.startswith("tidegate.http.routes"):  # what serves the calls, not the way to it
        return "http.routes"
    return module.split(".")[1] if "." in module else ""


def modules() -> dict[str, Path]:
    """Return the files of the service by module name."""
    named = {}
    for file in files(SERVICE):
        parts = file.relative_to(SERVICE.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return named


MODULES = modules()


def imported_modules(file: Path) -> set[str]:
    """Return the modules of the service that a file imports, including local and type-checking imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found & MODULES.keys()


@pytest.mark.parametrize("module", MODULES)
def test_the_service_imports_downwards(module: str) -> None:
    """The domain does not depend on the web, and no interface depends on another."""
    part = part_of(module)
    for other in imported_modules(MODULES[module]):
        target = part_of(other)
        if part in WIRING:
            assert target not in WIRING[: WIRING.index(part)], f"{module} imports {other}"
        elif target not in ("", part, *LEAVES):
            assert part not in LEAVES and target in MAY_IMPORT[part], f"{module} imports {other}"


def test_no_interface_imports_another() -> None:
    """Code that two interfaces need belongs to a lower part. `serve` and `openapi` need all, so they are wiring."""
    for interface in INTERFACES:
        assert not MAY_IMPORT[interface] & {*INTERFACES, *WIRING}
    assert {part_of(module) for module in MODULES} == {"", *MAY_IMPORT, *LEAVES, *WIRING}


def test_the_service_has_no_import_cycle() -> None:
    """The check includes local imports and imports under `TYPE_CHECKING`."""
    tuple(TopologicalSorter(MAY_IMPORT).static_order())
    graph = {module: imported_modules(file) - {module} for module, file in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", files(SERVICE / "views"), ids=lambda file: file.name)
def test_views_need_no_web_framework(file: Path) -> None:
    """The command line uses the same views."""
    assert not {module.split(".")[0] for module in imported(file)} & {"fastapi", "starlette", "uvicorn"}


@pytest.mark.parametrize("file", files(SERVICE / "domain"), ids=lambda file: file.name)
def test_the_domain_needs_nothing_but_python(file: Path) -> None:
    """Simulations run the domain with a simulated clock, so the domain must not read the time."""
    for module in imported(file):
        package = module.split(".")[0]
        assert module.startswith("tidegate.domain") or (package in sys.stdlib_module_names and package != "time"), (
            module
        )


@pytest.mark.parametrize("distribution", [SERVICE, CLIENT, PROVIDER], ids=lambda root: root.name)
def test_no_class_name_stands_twice_in_a_distribution(distribution: Path) -> None:
    """A reader who finds a class by its name must find the right one."""
    names = Counter(
        node.name
        for file in files(distribution)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.name != "Java"  # py4j looks for a nested class of this name
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_command_commit_needs_few_modules() -> None:
    """A reader of the most frequent command can read all that it runs."""
    reached: set[str] = set()
    left = {"tidegate.domain.batches"}
    while left:
        module = left.pop()
        reached.add(module)
        left |= imported_modules(MODULES[module]) - reached
    assert len(reached) <= 15, sorted(reached)


@pytest.mark.parametrize("file", files(PROVIDER), ids=lambda file: file.name)
def test_the_provider_imports_neither_the_service_nor_the_client(file: Path) -> None:
    """Workers of Airflow have neither Redis nor Spark."""
    assert not {module.split(".")[0] for module in imported(file)} & {"tidegate", "tidegate_spark", "pyspark", "redis"}


@pytest.mark.parametrize("file", files(CLIENT), ids=lambda file: str(file.relative_to(CLIENT)))
def test_the_client_does_not_import_the_service(file: Path) -> None:
    """Executors must run without a web framework. Only the audit runs the machine, on the driver."""
    modules = imported(file)
    if file.parent.name == "auditing":
        used = ("tidegate.domain", "tidegate.views.config", "tidegate.times")
        modules = {module for module in modules if not module.startswith(used)}
    packages = {module.split(".")[0] for module in modules}
    assert not packages & {"tidegate", "fastapi", "uvicorn", "pydantic", "redis", "examples"}


OF_AIRFLOW = {name: ["apache-airflow"] for name in ("airflow", "asgiref", "flask_appbuilder", "wtforms")}
"""Packages of Airflow, which is not installed here. Airflow 2.11 needs the last three, and requires them."""


@pytest.mark.parametrize("distribution", ["service", "spark_client", "integrations/airflow"])
def test_every_import_is_a_declared_dependency(distribution: str) -> None:
    """An indirect dependency may disappear with the next version of the package that requires it."""
    project = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]
    extras = [name for group in project.get("optional-dependencies", {}).values() for name in group]
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("_", "-") for text in [*project["dependencies"], *extras]
    }
    distributions = {**packages_distributions(), **OF_AIRFLOW}
    for file in files(ROOT / distribution / "src"):
        for package in {module.split(".")[0] for module in imported(file)} - set(sys.stdlib_module_names):
            names = {name.lower().replace("_", "-") for name in distributions.get(package, [package])}
            if package not in (
                "tidegate",
                "tidegate_spark",
                "tidegate_airflow",
                "pytest",
            ):  # pytest itself loads the fixtures
                assert names & declared, f"{file.name} imports {package}, of {names}"


def test_the_service_does_not_import_the_client() -> None:
    """The coordinator runs without Spark."""
    for file in files(SERVICE):
        foreign = {"tidegate_spark", "pyspark"} | ({"pyarrow"} if file.name != "simulate.py" else set())
        assert not {module.split(".")[0] for module in imported(file)} & foreign


def test_executors_import_few_packages() -> None:
    """Every Python worker imports the modules of the fold. httpx alone would take 0.2 s."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tidegate_spark.protocol.reporter; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "tidegate_spark.protocol.reporter" in loaded
    assert not {module.split(".")[0] for module in loaded} & {"httpx", "pyspark", "pyarrow", "pandas"}


def test_no_two_test_files_have_the_same_name() -> None:
    """In a folder that is no package, pytest imports each file under its name alone."""
    found = (ROOT / "tests").rglob("test_*.py")
    names = Counter(file.name for file in found if not (file.parent / "__init__.py").exists())
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("file", files(ROOT / "tests"), ids=lambda file: str(file.relative_to(ROOT)))
def test_test_folders_share_helpers_only_through_support(file: Path) -> None:
    """A folder of tests that imports another one cannot be run, marked or moved by itself."""
    here = file.relative_to(ROOT / "tests").parts[0]
    for module in imported(file):
        parts = module.split(".")
        if parts[0] == "tests":
            assert parts[1] in ("support", here), f"{file} imports {module}"
            assert not parts[-1].startswith("test_"), f"{file} imports the tests of {module}"
