"""Declarations of parameters and limits, in the dataclasses that have them as fields.

Validation, the JSON Schema of a configuration, the configuration for the functions in Redis, and the sentences about
limits are derived from these declarations.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from tidegate.domain.errors import InvalidConfig


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
