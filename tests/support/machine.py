"""The state machine of one job, with the commands of :mod:`tidegate.domain.commands` as methods."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.domain import commands, emission, schedule
from tidegate.domain.commands.queries import queries
from tidegate.domain.commands.status import status
from tidegate.domain.commands.substreams import substreams
from tidegate.domain.config import JobConfig
from tidegate.domain.results import JobSummary, QueryRow, SubstreamRow, WatermarkState
from tidegate.domain.state import JobState


class JobMachine(JobState):
    """A job whose methods are the commands."""

    def __init__(self, config: JobConfig, now_ms: int, **options: Any) -> None:
        super().__init__(config, now_ms, **options)
        commands.create(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in commands.__all__:
            raise AttributeError(name)
        return partial(getattr(commands, name), self)

    def watermark_state(self) -> WatermarkState:
        return emission.watermark_state(self)

    def summary(self) -> JobSummary:
        return status(self)

    def substream_table(self, now_ms: int) -> list[SubstreamRow]:
        return substreams(self, now_ms)

    def query_table(self) -> list[QueryRow]:
        return queries(self)

    def next_change_ms(self) -> int | None:
        return schedule.next_change_ms(self)
