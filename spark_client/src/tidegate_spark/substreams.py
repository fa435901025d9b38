"""Names of substreams.

The coordinator accepts printable names of up to 200 bytes, but columns may have any values. A value that cannot be a
name is mapped to a unique one, so no value fails a query or is confused with another value.
"""

import hashlib
import re
from collections.abc import Sequence
from enum import Enum

NULL = "(null)"
EMPTY = "(empty)"
WHOLE = "(all)"
LONGEST_BYTES = 200
_MARK_DIGITS = 16

# Characters that the coordinator refuses: control characters, line separators and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class SourcePartition(Enum):
    """The type of :data:`SOURCE_PARTITION`."""

    SOURCE_PARTITION = "source partition"


SOURCE_PARTITION = SourcePartition.SOURCE_PARTITION
"""Used in place of a column: each partition of the source is a substream, named by its number.

Use it only if a partition has the same meaning in every batch. Partitions of files do not: they depend on file sizes.
For Kafka, prefer the equivalent columns ``["topic", "partition"]``, which survive a repartition.
"""

Substream = str | Sequence[str] | SourcePartition | None
"""A column, several columns, :data:`SOURCE_PARTITION`, or None for a stream that is one substream."""

Value = str | int | None
Values = Value | tuple[Value, ...]
"""The value of the substream column, or a tuple of the values of its columns; None for null."""


def name_of(values: Values) -> str:
    """Return the unique and stable name of the substream with these values.

    A single value that can be a name is the name. Several values are joined by ``/``; ``/`` within a value becomes
    ``%2F``. Null is ``(null)``, and the empty string is ``(empty)``. Long or unprintable names are shortened, escaped
    and marked by a digest. So is a tuple that has the text ``(null)`` or ``(empty)``. As a single value, that text is
    the name of the substream, the same as for null or the empty string.
    """
    parts = values if isinstance(values, tuple) else (values,)
    name = "/".join(_part(part).replace("%", "%25").replace("/", "%2F") for part in parts)
    if len(parts) == 1:
        name = _part(parts[0])
    mistakable = isinstance(values, tuple) and (NULL in parts or EMPTY in parts)
    if mistakable or _UNPRINTABLE.search(name) or len(name.encode(errors="surrogatepass")) > LONGEST_BYTES:
        return _marked(name)
    return name


def values_of(name: str, columns: int) -> tuple[str | None, ...]:
    """Return the values, as strings, of the columns that a name was made from.

    For a name that was shortened or escaped, they are values that no row has.
    """
    if columns == 0:
        return ()
    parts = [name]
    if columns > 1:
        parts = [part.replace("%2F", "/").replace("%25", "%") for part in name.split("/", columns - 1)]
    return (
        *(None if part == NULL else "" if part == EMPTY else part for part in parts),
        *[None] * (columns - len(parts)),
    )


def _part(value: Value) -> str:
    if value is None:
        return NULL
    return str(value) or EMPTY


def _marked(name: str) -> str:
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_MARK_DIGITS]
    printable = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", name)
    room = LONGEST_BYTES - _MARK_DIGITS - 1
    return f"{printable.encode(errors='replace')[:room].decode(errors='ignore')}~{mark}"
