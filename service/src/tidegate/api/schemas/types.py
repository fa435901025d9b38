"""The types that requests are made of, with their limits."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from tidegate.domain.ledger import ENTRIES_KEPT, HOUR
from tidegate.domain.numbers import EXACT_DOUBLE
from tidegate.domain.sketch import HIGHEST_BUCKET

MAX_NAMES = 100_000
LONGEST_NAME = 200
ID = r"^[A-Za-z0-9._~-]{1,128}$"

# Control characters and lone surrogates: they print as nothing, or not at all.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

Id = Annotated[str, Field(pattern=ID)]
"""A job, a query, a checkpoint or a run."""

EventTime = Annotated[int, Field(strict=True, ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)]
"""An event time, or a watermark: what an IEEE double holds exactly."""

BatchNumber = Annotated[int, Field(strict=True, ge=0, le=EXACT_DOUBLE.highest)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**12)]
"""Rows of one batch: sums of these stay exact."""

Bucket = Annotated[int, Field(strict=True, ge=0, le=HIGHEST_BUCKET)]
DelayCounts = Annotated[list[tuple[Bucket, Count]], Field(max_length=HIGHEST_BUCKET + 1)]
"""How many rows came in which bucket of delays."""

Hour = Annotated[int, Field(strict=True, ge=EXACT_DOUBLE.lowest // HOUR, le=EXACT_DOUBLE.highest // HOUR)]
"""Of event time, counted from 0."""

RowsByHour = Annotated[list[tuple[Hour, Count, Count, Count]], Field(max_length=ENTRIES_KEPT)]
"""Hours; of the rows of each how many there are, how many changed a result that was out, and how many were late."""

WaitMs = Annotated[int, Field(strict=True, ge=0, le=366 * 24 * 3_600_000)]
"""Time that somebody waited: a year at the most."""

DurationMs = Annotated[int, Field(strict=True, ge=0, le=EXACT_DOUBLE.highest)]
PositiveMs = Annotated[int, Field(strict=True, ge=1, le=EXACT_DOUBLE.highest)]


def _names(names: list[str]) -> list[str]:
    for index, name in enumerate(names):
        if not 1 <= len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
            raise ValueError(f"name {index} must be 1 to {LONGEST_NAME} bytes long")
        if _UNPRINTABLE.search(name):
            raise ValueError(f"name {index} holds a character that cannot be printed")
    if len(set(names)) != len(names):
        raise ValueError("a name occurs twice; merge its values before sending them")
    return names


PRINTABLE = "[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]"
"""As a pattern of JSON Schema."""


def _printable(text: str) -> str:
    if _UNPRINTABLE.search(text):
        raise ValueError("must be one line of printable characters")
    return text


Text = Annotated[str, AfterValidator(_printable), Field(json_schema_extra={"pattern": f"^{PRINTABLE}*$"})]
"""A line that people read: no control characters, which could take over a terminal."""

Names = Annotated[
    list[str],
    Field(max_length=MAX_NAMES),
    AfterValidator(_names),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MAX_NAMES,
            "uniqueItems": True,
            "items": {
                "type": "string",
                "pattern": f"^{PRINTABLE}{{1,{LONGEST_NAME}}}$",
                "description": f"at most {LONGEST_NAME} bytes of UTF-8",
            },
        }
    ),
]
"""Names of substreams, each once: 1 to 200 bytes of UTF-8, no control characters."""


class Request(BaseModel):
    """A body. Members that are not known are refused: a misspelt limit must not be a limit that is off."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(BaseModel):
    """An answer."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class FieldError(ValueError):
    """Something wrong between fields, named after the one to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def equal_lengths(columns: Mapping[str, Sequence[object] | None], size: int, of: str) -> None:
    """:raises FieldError: naming the first column that is there and is not ``size`` long."""
    for name, values in columns.items():
        if values is not None and len(values) != size:
            raise FieldError(name, f"has {len(values)} values for {size} {of}; the columns must be equally long")
