"""What makes a substream: the values of columns, the source partition, or the stream as a whole; and their names.

A coordinator takes names that can be printed, of 200 bytes at the most. Values of columns may be anything, and none may
stop a query or be mistaken for another, so what cannot be a name is given one that stands for it alone.
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

# What the coordinator takes for unprintable: control characters and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class SourcePartition(Enum):
    """The substream is the partition of the source: see :data:`SOURCE_PARTITION`."""

    SOURCE_PARTITION = "source partition"


SOURCE_PARTITION = SourcePartition.SOURCE_PARTITION
"""In place of a column: each partition that the source reads is a substream, named by its number.

For sources whose partitions mean the same in every batch. Those of files do not: which file lands in which one is a
matter of sizes. With Kafka, the columns ``["topic", "partition"]`` say the same and hold through every repartition.
"""

Substream = str | Sequence[str] | SourcePartition | None
"""A column, several columns, :data:`SOURCE_PARTITION`, or None: the whole stream is one."""

Value = str | int | None
Values = Value | tuple[Value, ...]
"""The value of the substream's column, or of each of its columns; None where it is null."""


def name_of(values: Values) -> str:
    """The name of the substream with these values, as a coordinator takes it: one for each, for ever the same.

    A single value that can be a name is its own. Several are joined by ``/``; a ``/`` within one of them becomes
    ``%2F``. Null is ``(null)``, the empty string ``(empty)``. What is too long or cannot be printed is shortened,
    escaped, and marked by a digest; so is a value, in a tuple, that reads ``(null)`` or ``(empty)``. Given by itself, a
    name stands for the substream that has it.
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
    """The values, as strings, that give a name, of so many columns.

    Of names that were shortened or escaped the values are lost; what comes for them are values that no row has.
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
