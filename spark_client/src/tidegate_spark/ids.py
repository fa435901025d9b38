"""Names that travel in paths."""

import re

from tidegate_spark.errors import InvalidUsage

_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")


def checked_id(role: str, name: str) -> str:
    """:raises InvalidUsage: for a name that the coordinator would refuse."""
    if not _ID.fullmatch(name):
        raise InvalidUsage(f"{role} {name!r} must be 1 to 128 letters, digits and . _ ~ -")
    return name
