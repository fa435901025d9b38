"""Answers to probes."""

from typing import Literal

from pydantic import Field

from tidegate.reads.types import Record


class Liveness(Record):
    """The answer of a live process."""

    status: Literal["alive"] = Field(default="alive", description="Always `alive`.", examples=["alive"])


class Readiness(Record):
    """The answer of a replica that can serve calls."""

    status: Literal["ready"] = Field(default="ready", description="Always `ready`.", examples=["ready"])
