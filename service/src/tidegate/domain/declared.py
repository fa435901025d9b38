"""Declarations of parameters and limits, made once in the dataclass that holds them.

Validation, the JSON Schema of a configuration, the record for the scripts, and the names of limits derive from them.
"""

from dataclasses import Field, dataclass, field, fields
from typing import Any

from tidegate.domain.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a parameter or a limit, besides its name and type.

    ``effect`` is what a limit does when it acts, as the end of a sentence; "" for a plain parameter.
    """

    description: str
    minimum: int | float
    maximum: int | float | None
    example: object
    effect: str


def parameter(
    description: str,
    *,
    minimum: int | float = 0,
    maximum: int | float | None = None,
    example: object = None,
    effect: str = "",
    **options: Any,
) -> Any:
    """Return a dataclass field for a declared number; ``options`` are those of ``dataclasses.field``."""
    return field(metadata={"declared": Declared(description, minimum, maximum, example, effect)}, **options)


def declarations(of: Any) -> dict[str, Declared]:
    """Return the declared fields of a dataclass, by name."""
    return {each.name: found for each in fields(of) if (found := declaration(each)) is not None}


def declaration(of: "Field[Any]") -> Declared | None:
    """Return the declaration of a dataclass field; None for a field without one."""
    found: Declared | None = of.metadata.get("declared")
    return found


def check_declared(of: Any, prefix: str = "") -> None:
    """Check all declared numbers of a dataclass instance.

    Raises:
        InvalidConfig: For the first number outside its range; ``prefix`` is put before its name.
    """
    for name, declared in declarations(of).items():
        value = getattr(of, name)
        if value is None or (value >= declared.minimum and (declared.maximum is None or value <= declared.maximum)):
            continue
        allowed = (
            f"{declared.minimum} or more"
            if declared.maximum is None
            else (f"from {declared.minimum} to {declared.maximum}")
        )
        off = ", or null to turn it off" if declared.effect else ""
        raise InvalidConfig(prefix + name, f"{name} must be {allowed}{off}; it is {value}.")
