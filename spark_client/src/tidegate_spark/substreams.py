"""Substreams: the values of columns, the source partition, or the stream as a whole; and their names.

The coordinator takes printable names of up to 200 bytes. Values of columns may be anything. A value that cannot be a
name gets one of its own, so that no value stops a query or is taken for another.
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

# What the coordinator considers unprintable: control characters and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class SourcePartition(Enum):
    """The type of :data:`SOURCE_PARTITION`."""

    SOURCE_PARTITION = "source partition"


SOURCE_PARTITION = SourcePartition.SOURCE_PARTITION
"""In place of a column: each partition of the source is a substream, named by its number.

For sources whose partitions mean the same in every batch. Partitions of files do not: they depend on file sizes. With
Kafka, the columns ``["topic", "partition"]`` are equivalent and survive a repartition.
"""

Substream = str | Sequence[str] | SourcePartition | None
"""A column, several columns, :data:`SOURCE_PARTITION`, or None for a stream that is one substream."""

Value = str | int | None
Values = Value | tuple[Value, ...]
"""The value of the substream's column, or of each of its columns; None for null."""


def name_of(values: Values) -> str:
    """Return the name of the substream with these values: unique, and always the same.

    A single value that can be a name is the name. Several values are joined by ``/``; a ``/`` within one of them
    becomes ``%2F``. Null is ``(null)``, the empty string ``(empty)``. Long or unprintable names are shortened, escaped
    and marked by a digest. So is a tuple with the text ``(null)`` or ``(empty)``; as a single value, that text is the
    name of the substream.
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
    """Return the values, as strings, that a name of so many columns was made from.

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
