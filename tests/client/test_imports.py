"""Rules for the modules of the client.

Modules import only lower layers, also under TYPE_CHECKING and within functions. No SQL statement has arguments.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate_spark

ROOT = Path(tidegate_spark.__file__).parent

LAYERS = [
    ["audit", "auditing"],
    ["testing"],
    ["job"],
    ["stream"],
    ["start", "native"],
    ["windows"],
    ["hook"],
    ["complete"],
    ["tables"],
    ["actions"],
    ["reads"],
    ["sources"],
    ["protocol"],
    ["claims"],
    ["arguments", "batch", "columns", "frame", "spark_session", "logs"],
    ["config", "substreams", "clock", "days", "errors"],
]
"""Layers from top to bottom. A module may import from its own layer and from lower ones, without a cycle."""

WITHOUT_SPARK = ["batch", "config", "substreams", "clock", "errors", "logs"]
"""Modules that the protocol may import besides its own."""


def module_of(file: Path) -> str:
    """Return the name of a module, relative to the package; the package itself is the empty string."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(ROOT.rglob("*.py"))}


def imports_of(file: Path) -> list[tuple[str, str]]:
    """Return every import in a file, at any depth, as pairs of the module and the imported name or an empty string."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: import by the full name"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def own_imports(file: Path) -> set[str]:
    """Return the modules of the package that a file imports."""
    found = set()
    for module, name in imports_of(file):
        if module.split(".")[0] == "tidegate_spark":
            inner = module.partition(".")[2]
            submodule = f"{inner}.{name}".lstrip(".")
            found.add(submodule if submodule in FILES else inner)
    return found


def layer_of(module: str) -> int:
    """Return the number of a module's layer, from the top."""
    top = module.split(".")[0]
    return next(number for number, names in enumerate(LAYERS) if top in names)


GRAPH = {module: own_imports(file) for module, file in FILES.items() if module}


def find_cycle(start: str, graph: dict[str, set[str]]) -> list[str] | None:
    """Return a path from a module back to itself, or None."""
    waiting, seen = [[start]], {start}
    while waiting:
        path = waiting.pop()
        for following in graph.get(path[-1], set()):
            if following == start:
                return [*path, start]
            if following not in seen:
                seen.add(following)
                waiting.append([*path, following])
    return None


@pytest.mark.parametrize("module", GRAPH)
def test_imports_point_downwards(module: str) -> None:
    for imported in GRAPH[module]:
        assert imported in GRAPH, f"{module} imports {imported or 'the package itself'}"
        assert layer_of(imported) >= layer_of(module), f"{module} imports {imported}, which is above it"


@pytest.mark.parametrize("module", GRAPH)
def test_no_module_is_in_an_import_cycle(module: str) -> None:
    assert find_cycle(module, GRAPH) is None


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tidegate_spark.job import Job",
        "def f():\n    from tidegate_spark.job import connect",
        "def f():\n    import tidegate_spark.job",
        "from tidegate_spark import job",
    ],
)
def test_a_hidden_import_is_found(source: str, tmp_path: Path) -> None:
    """`own_imports` finds imports under TYPE_CHECKING and within functions."""
    file = tmp_path / "hidden.py"
    file.write_text(source)
    assert own_imports(file) == {"job"}


def test_a_cycle_is_found() -> None:
    assert find_cycle("a", {"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("module", [module for module in GRAPH if module.split(".")[0] == "protocol"])
def test_the_protocol_needs_no_spark_and_one_module_uses_httpx(module: str) -> None:
    """The protocol can run in tests and simulations without Java and without HTTP."""
    libraries = {name.split(".")[0] for name, _ in imports_of(FILES[module])}
    assert "pyspark" not in libraries
    assert "httpx" not in libraries or module == "protocol.transport"
    for imported in GRAPH[module]:
        assert imported.split(".")[0] == "protocol" or imported in WITHOUT_SPARK, f"{module} imports {imported}"


@pytest.mark.parametrize("module", ["hook.folding", "native.folding"])
def test_the_code_of_tasks_imports_no_httpx(module: str) -> None:
    """The import of httpx takes 0.2 s in every Python worker."""
    program = f"import sys, tidegate_spark.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert f"tidegate_spark.{module}" in loaded
    assert "httpx" not in loaded


def sql_with_arguments(source: str) -> list[int]:
    """Return the lines with calls of a method ``sql`` that pass more than the text."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "sql" and (len(call.args) > 1 or call.keywords)
    ]


@pytest.mark.parametrize("module", FILES)
def test_no_statement_has_arguments(module: str) -> None:
    """A parser of a session extension may not bind arguments. Delta Lake's on Spark 4.1 does not, and queries fail."""
    assert sql_with_arguments(FILES[module].read_text()) == []


def test_a_statement_with_arguments_is_found() -> None:
    calls = ["spark.sql('SELECT 1')", "df.sparkSession.sql(text, {'a': 1})", "spark.sql(text, args={'a': 1})"]
    assert sql_with_arguments("\n".join(calls)) == [2, 3]
