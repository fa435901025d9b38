"""Names of substreams.

The coordinator accepts printable names of up to 200 bytes, but columns may have any values. :func:`name_of` returns a
valid name for every value, so no value makes a query fail.
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
"""Argument ``substream`` for a stream in which each partition of the source is a substream, named by its number.

Pass this value only if a partition has the same meaning in every batch. Do not pass it for files, whose partitions
depend on file sizes. For Kafka, prefer the equivalent columns ``["topic", "partition"]``, which survive a repartition.
After a repartition, and for files, the client logs a warning, except under Spark Connect.
"""

Substream = str | Sequence[str] | SourcePartition | None
"""A column, several columns, :data:`SOURCE_PARTITION`, or None for a stream that is one substream."""

Value = str | int | None
Values = Value | tuple[Value, ...]
"""The value of the substream column, or a tuple with the value of each substream column; None for null."""


def name_of(values: Values) -> str:
    """Return the stable name of the substream with these values.

    The name of a single value is its text. The name of several values is their texts, joined by ``/``. In these texts,
    ``%`` becomes ``%25``, and ``/`` becomes ``%2F``. Null becomes ``(null)``, and the empty string ``(empty)``. A long
    or unprintable name is shortened or escaped, and ends with a digest. The name of a tuple that contains the text
    ``(null)`` or ``(empty)`` also ends with a digest.

    Names are unique, with two exceptions. A single value ``(null)`` has the name of null. A single value ``(empty)``
    has the name of the empty string.
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
    """Return the column values, as strings, that a name was made from.

    For a shortened or escaped name, no row has the returned values.
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
