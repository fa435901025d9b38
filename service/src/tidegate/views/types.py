"""Types of the members of requests and responses, with their limits."""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, WithJsonSchema

from tidegate.domain.completeness import ENTRIES_KEPT, HIGHEST_BUCKET, HOUR
from tidegate.domain.values import EXACT_DOUBLE, ID, INT64, check_id
from tidegate.store.pieces import Pieces

MAX_CAUGHT_UP = 500
"""Maximum number of substreams that a function call in Redis makes idle (``store/lua/evaluate.lua``)."""
MAX_PARTITIONS = 5000
"""Maximum number of partitions whose offsets a call may tell. One function call in Redis compares them."""
MAX_NAMES = 100_000
MAX_NAME_BYTES = 200

# Control characters, line and paragraph separators, and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

PRINTABLE = "[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]"
"""One printable character, as a JSON Schema pattern."""

Value = TypeVar("Value")
Column = Annotated[list[Value], Field(max_length=MAX_NAMES, fail_fast=True)]
"""Values of substreams. Validation stops at the first invalid value, because a million errors take 1.6 GB."""

STORED = {"stored": True}
"""Context of the validation of stored data, which may contain names that are no longer ids."""


def _check_new_id(name: str, info: ValidationInfo) -> str:
    return name if info.context is STORED else check_id(name)


Id = Annotated[str, AfterValidator(_check_new_id), Field(json_schema_extra={"pattern": ID})]
"""Name of a job, a query, a checkpoint, a run or a hold."""

EventTime = Annotated[int, Field(strict=True, ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)]
"""Event time or watermark, in the range of integers that an IEEE double holds exactly."""

BatchNumber = Annotated[int, Field(strict=True, ge=0, le=EXACT_DOUBLE.highest)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**12)]
"""Number of rows of one batch. The bound keeps sums exact."""

Bucket = Annotated[int, Field(strict=True, ge=0, le=HIGHEST_BUCKET)]
DelayCounts = Annotated[list[tuple[Bucket, Count]], Field(max_length=HIGHEST_BUCKET + 1, fail_fast=True)]
"""Pairs of a delay bucket and its number of rows."""

Hour = Annotated[int, Field(strict=True, ge=EXACT_DOUBLE.lowest // HOUR, le=EXACT_DOUBLE.highest // HOUR)]
"""Hour of event time, counted from the epoch."""

RowsByHour = Annotated[list[tuple[Hour, Count, Count, Count]], Field(max_length=ENTRIES_KEPT, fail_fast=True)]
"""Tuples of an hour, its rows, its updated rows and its late rows."""

RowsByFrame = Annotated[list[tuple[EventTime, Count, Count, Count]], Field(max_length=MAX_NAMES, fail_fast=True)]
"""Tuples of a time in a frame, and the frame's rows, updated rows and late rows."""

WaitMs = Annotated[int, Field(strict=True, ge=0, le=366 * 24 * 3_600_000)]
"""Time in milliseconds for which a client waited: at most 366 days."""

DurationMs = Annotated[int, Field(strict=True, ge=0, le=EXACT_DOUBLE.highest)]
PositiveMs = Annotated[int, Field(strict=True, ge=1, le=EXACT_DOUBLE.highest)]


_SIZES = frozenset(range(1, MAX_NAME_BYTES + 1))


def _check_names(names: list[str]) -> list[str]:
    together, sizes = "".join(names), set(map(len, names))
    # Most lists pass this check, which takes a tenth of the time of a check of each name.
    if not (together.isascii() and together.isprintable() and sizes <= _SIZES):
        _check_each(names)
    if len(set(names)) != len(names):
        raise ValueError("a name occurs more than once; send each name once, with merged values")
    return names


def _check_each(names: list[str]) -> None:
    for index, name in enumerate(names):
        if not 1 <= len(name.encode(errors="surrogatepass")) <= MAX_NAME_BYTES:
            raise ValueError(f"name {index} must be 1 to {MAX_NAME_BYTES} bytes long")
        if _UNPRINTABLE.search(name):
            raise ValueError(f"name {index} contains an unprintable character")


def _check_printable(text: str) -> str:
    if _UNPRINTABLE.search(text):
        raise ValueError("must be one line of printable characters")
    return text


Text = Annotated[str, AfterValidator(_check_printable), Field(json_schema_extra={"pattern": f"^{PRINTABLE}*$"})]
"""One line of text. It contains no control characters, because they could control a terminal."""

_NAME = {
    "type": "string",
    "pattern": f"^{PRINTABLE}{{1,{MAX_NAME_BYTES}}}$",
    "description": f"At most {MAX_NAME_BYTES} bytes of UTF-8.",
}

Names = Annotated[
    list[str],
    Field(max_length=MAX_NAMES, fail_fast=True),
    AfterValidator(_check_names),
    WithJsonSchema({"type": "array", "maxItems": MAX_NAMES, "uniqueItems": True, "items": _NAME}),
]
"""Distinct names of substreams: 1 to 200 bytes of UTF-8 each, without control characters."""

SomeNames = Annotated[
    list[str],
    Field(max_length=MAX_CAUGHT_UP, fail_fast=True),
    AfterValidator(_check_names),
    WithJsonSchema({"type": "array", "maxItems": MAX_CAUGHT_UP, "uniqueItems": True, "items": _NAME}),
]
"""Distinct names of substreams, few enough for one function call in Redis."""

PartitionNames = Annotated[
    list[str],
    Field(max_length=MAX_PARTITIONS, fail_fast=True),
    AfterValidator(_check_names),
    WithJsonSchema({"type": "array", "maxItems": MAX_PARTITIONS, "uniqueItems": True, "items": _NAME}),
]
"""Distinct names of partitions of a source."""

Offset = Annotated[int, Field(strict=True, ge=0, le=EXACT_DOUBLE.highest)]
"""Offset in a partition of a source."""


VERSION = "^(0|[1-9][0-9]{0,18})$"


def _check_version(text: str) -> str:
    if re.fullmatch(VERSION, text) is None or int(text) > INT64.highest:
        raise ValueError(f"must be a text of digits without leading zeros, at most {INT64.highest}")
    return text


Version = Annotated[str, AfterValidator(_check_version), Field(json_schema_extra={"pattern": VERSION})]
"""Version of a table: a number below 2^63, as a text of digits.

JSON numbers above 2^53 are not exact in JavaScript, jq and Lua, and ids of snapshots are random numbers of 64 bits.
"""


class Request(BaseModel):
    """A request body. An unknown member is an error, so that a misspelled limit is not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SubstreamsRequest(Request):
    """A request with columns of substreams. They become the pieces of a command, or another process converts them."""

    _pieces: Pieces | None = PrivateAttr(default=None)

    def pieces(self, query: str = "") -> Pieces:
        """Return the columns; ``query`` is the query in the path of the call."""
        return self._to_pieces(query) if self._pieces is None else self._pieces

    def converted(self, query: str) -> Self:
        """Return this request without the columns, but with their pieces."""
        converted = self.model_copy(update=self._empty())
        converted._pieces = self._to_pieces(query).encoded()
        return converted

    def _to_pieces(self, query: str) -> Pieces:
        raise NotImplementedError

    def _empty(self) -> dict[str, Any]:
        """Return values for the columns of a request without columns."""
        raise NotImplementedError


class Answer(BaseModel):
    """A part of a response."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


def attributes(of: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance by name. Unlike ``asdict``, it does not copy the values."""
    return {field.name: getattr(of, field.name) for field in fields(of)}


class FieldError(ValueError):
    """A validation error that involves several fields.

    Args:
        field: The field to change.
        message: What is wrong with the field.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check_equal_lengths(request: Request, columns: Iterable[str], of: str) -> None:
    """Check that each column of a request that is not None has as many values as the column ``of``.

    Raises:
        FieldError: If a column has another length. The error names the first such column.
    """
    size = len(getattr(request, of))
    for name in columns:
        values = getattr(request, name)
        if values is not None and len(values) != size:
            raise FieldError(name, f"has {len(values)} values for {size} {of}; the columns must be equally long")
