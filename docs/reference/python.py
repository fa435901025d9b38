"""The exports of ``tidegate_spark``, with descriptions from their docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import tidegate_spark
from docs.reference.tables import Row, code, plain


def exports() -> list[Row]:
    return [row for name in sorted(tidegate_spark.__all__) for row in _export(name, getattr(tidegate_spark, name))]


def _export(name: str, export: Any) -> Iterator[Row]:
    if inspect.isclass(export):
        yield from _described(name, name, inspect.getdoc(export))
        for member, value in sorted(members_of(export).items()):
            if not member.startswith("_"):
                yield from _member(f"{name}.{member}", value)
    elif inspect.isfunction(export):
        yield from _member(name, export)
    else:
        yield code(name), "", plain(_text_after(name).partition("\n\n")[0])


def members_of(export: type) -> dict[str, Any]:
    """Return the members of a class and of its bases in this package that are not exported themselves."""
    exported = [getattr(tidegate_spark, name) for name in tidegate_spark.__all__]
    own = [base for base in export.__mro__ if base.__module__.startswith("tidegate_spark.")]
    bases = [base for base in reversed(own) if base is export or base not in exported]
    return {name: value for base in bases for name, value in vars(base).items()}


def _member(name: str, member: Any) -> Iterator[Row]:
    if isinstance(member, classmethod):
        member = member.__func__
    if isinstance(member, property):
        yield from _described(name, name, inspect.getdoc(member))
    elif inspect.isfunction(member):
        yield from _described(name, f"{name}({_parameters(member)})", inspect.getdoc(member))


def _described(name: str, shown: str, docstring: str | None) -> Iterator[Row]:
    assert docstring, f"{name} has no docstring"
    yield code(shown), "", plain(docstring.partition("\n\n")[0])
    for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?)+)", docstring, re.MULTILINE):
        for parameter, meaning in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            yield code(name), code(parameter), plain(meaning)


def _parameters(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters if p.name not in ("self", "cls")]
    return ", ".join(map(str, bare))


def _text_after(constant: str) -> str:
    """Return the string that follows the assignment of a constant in its module."""
    for module in sorted(Path(tidegate_spark.__file__).parent.glob("*.py")):
        for node, text in pairwise(ast.parse(module.read_text()).body):
            if isinstance(node, ast.Assign) and constant in [ast.unparse(target) for target in node.targets]:
                return str(ast.literal_eval(ast.unparse(text)))
    raise AssertionError(f"{constant} has no docstring")
