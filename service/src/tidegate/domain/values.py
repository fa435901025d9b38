"""Names, numbers, and declared members and parameters: what all other modules use."""

import re
from dataclasses import dataclass, field, fields
from typing import Any

from tidegate.domain.errors import InvalidConfig

# Names

ID_CHARACTERS = "A-Za-z0-9._~-"
"""Characters of an id, as the content of a character class."""

_ANY, _NO_DOT = f"[{ID_CHARACTERS}]", "[A-Za-z0-9_~-]"
ID = rf"^({_NO_DOT}{_ANY}{{0,127}}|\.{_NO_DOT}{_ANY}{{0,126}}|\.\.{_ANY}{{1,126}})$"
"""Pattern of an id: the name of a job, a query, a checkpoint, a run or a hold.

``.`` and ``..`` are no ids. HTTP clients and proxies remove these segments from a path (RFC 3986, section 5.2.4), so
that a call about a hold ``..`` becomes a call about its job. The pattern has no lookahead, because pydantic and JSON
Schema do not support it.
"""
STORED_NAME = rf"^{_ANY}{{1,128}}$"
"""Pattern of a name that an older version may have stored. It may be a dot segment."""
NAME_OR_EMPTY = rf"^{_ANY}{{0,128}}$"
"""Pattern of a name in a query string, which no client normalizes. Older versions may have stored such a name."""
ID_RULE = "1 to 128 letters, digits and . _ ~ -, but not . or .. alone"

_VALID_ID = re.compile(ID)


def check_id(name: str) -> str:
    """Return an id.

    Raises:
        ValueError: If the name is not an id. The message says what an id is.
    """
    if _VALID_ID.fullmatch(name) is None:
        raise ValueError(f"must be {ID_RULE}")
    return name


SubstreamKey = tuple[str, str]
"""(query, substream)."""

DIRECT = ""
"""The query name of reports without batches."""

PLACEHOLDER = ""
"""The name of the substream that holds the watermark for an expected query until its substreams are known."""


def member(key: SubstreamKey) -> str:
    """Return ``<query>/<substream>``, the name of a substream within its job. Query names contain no slash."""
    return "/".join(key)


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the whole name.

    For each literal piece of the pattern, the time is linear in the length of the name.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    *middle, last = rest
    at = len(first)
    for piece in middle:
        found = name.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(name) - at >= len(last) and name.endswith(last)


# Numbers. None stands for "no watermark" and sorts below every number.


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A closed interval of numbers that can be held exactly."""

    lowest: int
    highest: int

    def minus(self, value: int, amount: int) -> int | None:
        """Return ``value - amount``, or None ("no watermark") if the difference is below the range."""
        difference = value - amount
        return difference if difference >= self.lowest else None

    def plus(self, value: int, amount: int) -> int:
        """Return ``value + amount``, but at most the highest number of the range."""
        return min(value + amount, self.highest)


INT64 = NumberRange(-(2**63) + 1, 2**63 - 1)
"""Signed 64-bit integers, except the lowest, which stands for "no watermark" in the conformance traces."""

EXACT_DOUBLE = NumberRange(-(2**53) + 1, 2**53 - 1)
"""The integers that an IEEE double holds without gaps: the range of the API and of the store.

JSON (RFC 8259, section 6) and Redis scores hold numbers as doubles.
"""


def highest(*values: int | None) -> int | None:
    """Return the highest value that is not None; None if all values are None."""
    present = [value for value in values if value is not None]
    return max(present) if present else None


def above(a: int | None, b: int | None) -> bool:
    """Return whether watermark ``a`` is ahead of ``b``; None is behind every number."""
    return a is not None and (b is None or a > b)


def by_value(value: int | None) -> tuple[bool, int]:
    """Return a key that sorts watermarks, None first."""
    return value is not None, value or 0


# Members of records. The JSON Schema of the API has their descriptions and examples.


def described(description: str, *, example: object = ..., **options: Any) -> Any:
    """Return a dataclass field for a member that answers contain; ``options`` are those of ``dataclasses.field``."""
    examples = {} if example is ... else {"examples": [example]}
    return field(metadata={"description": description, **examples}, **options)


# Declared parameters. Validation, the JSON Schema of a configuration, the configuration for the functions in Redis, and
# the sentences about limits derive from these declarations.


@dataclass(frozen=True, slots=True)
class Declared:
    """The properties of a parameter or a limit, in addition to its name, type and default.

    ``maximum`` is None if every exact number from ``minimum`` is allowed. ``effect`` completes the sentence "the limit
    acts, and …"; it is "" for a parameter that is not a limit. ``request_default`` is the default in a request, if it
    differs from the default of the dataclass.
    """

    description: str
    minimum: int | float
    maximum: int | float | None
    example: object
    effect: str = ""
    request_default: object = None


def parameter(
    description: str,
    *,
    minimum: int | float = 0,
    maximum: int | float | None = None,
    example: object,
    effect: str = "",
    request_default: object = None,
    **options: Any,
) -> Any:
    """Return a dataclass field for a declared number; ``options`` are those of ``dataclasses.field``."""
    declared = Declared(description, minimum, maximum, example, effect, request_default)
    return field(metadata={"declared": declared}, **options)


def declarations(of: Any) -> dict[str, Declared]:
    """Return the declarations of a dataclass, by name."""
    return {each.name: each.metadata["declared"] for each in fields(of) if "declared" in each.metadata}


def effects(*of: Any) -> dict[str, str]:
    """Return the effect of each limit that these dataclasses declare, by name."""
    return {name: each.effect for some in of for name, each in declarations(some).items() if each.effect}


def check_declared(of: Any, prefix: str = "") -> None:
    """Check all declared numbers of a dataclass instance.

    Raises:
        InvalidConfig: If a number is outside its range. The error names the first such number, after ``prefix``.
    """
    for name, declared in declarations(of).items():
        value, lowest, highest = getattr(of, name), declared.minimum, declared.maximum
        if value is None or (value >= lowest and (highest is None or value <= highest)):
            continue
        allowed = f"{lowest} or more" if highest is None else f"from {lowest} to {highest}"
        off = ", or null to turn it off" if declared.effect else ""
        raise InvalidConfig(prefix + name, f"{name} must be {allowed}{off}; it is {value}.")
