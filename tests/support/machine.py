"""The state machine of one job, with the commands of :mod:`tidegate.domain` as methods."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.domain import batches, commands, consumers, evaluate, frames, views
from tidegate.domain.config import JobConfig
from tidegate.domain.frames import FrameStatus
from tidegate.domain.job import JobState
from tidegate.domain.results import JobWatermark
from tidegate.domain.views import JobSummary, QueryStatus, SubstreamStatus

COMMANDS: dict[str, Callable[..., Any]] = {
    command.__name__: command
    for command in (
        *(batches.begin, batches.stage, batches.commit, batches.heartbeat),
        *(commands.create, commands.configure, commands.report),
        *(commands.declare, commands.restore, commands.idle, commands.done, commands.evict, commands.retire),
        *(commands.hold, commands.release, commands.complete, commands.reopen, commands.reset, commands.sweep),
        *(consumers.consume, consumers.forget_consumer),
    )
}


class JobMachine(JobState):
    """A job whose methods are the commands."""

    def __init__(self, config: JobConfig, now_ms: int, **options: Any) -> None:
        super().__init__(config, now_ms, **options)
        commands.create(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in COMMANDS:
            raise AttributeError(name)
        return partial(COMMANDS[name], self)

    def watermark_state(self) -> JobWatermark:
        return evaluate.watermark_state(self)

    def summary(self) -> JobSummary:
        return views.status(self)

    def substream_table(self, now_ms: int) -> list[SubstreamStatus]:
        return views.substreams(self, now_ms)

    def query_table(self) -> list[QueryStatus]:
        return views.queries(self)

    def frames_between(self, most: int) -> list[FrameStatus]:
        return frames.frames_between(self, None, None, most)

    def next_change_ms(self) -> int | None:
        return evaluate.next_change_ms(self)
