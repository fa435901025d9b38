"""One interface to the Python state machine and the Lua functions: a job, driven step by step."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tests.support.driver import Driver, records
from tests.support.machine import JobMachine
from tidegate.domain.config import Frame, FrameThrottle, JobConfig
from tidegate.domain.history import MOVEMENTS, Record
from tidegate.domain.policies import LimitingLag
from tidegate.domain.results import Effect
from tidegate.domain.values import DIRECT, INT64

Item = int | str
Values = Mapping[str, int]


class Rig(Protocol):
    """A job whose reporters use no batches."""

    def report(self, tops: Values, watermarks: Values, now_ms: int) -> bool: ...
    def declare(self, names: Sequence[str], top: int | None, now_ms: int) -> None: ...
    def restore(self, name: str, watermark: int | None, now_ms: int) -> None: ...
    def idle(self, name: str, now_ms: int) -> None: ...
    def done(self, name: str, now_ms: int) -> bool: ...
    def is_all_idle(self, now_ms: int) -> bool: ...
    def sweep(self, now_ms: int) -> None: ...

    def watermarks(self, now_ms: int) -> dict[str, int | None]: ...

    def items(self) -> list[Item]:
        """Return the items emitted since the last call: watermarks and ``"idle"``."""
        ...

    @property
    def said_idle(self) -> bool:
        """Whether no substream has counted since the last ``"idle"``."""
        ...


class Side(Protocol):
    """An implementation of the state machine.

    Attributes:
        exact_in_doubles: Whether the implementation accepts only numbers that doubles hold exactly.
        moves_back: Whether ``restore`` can move the watermark back."""

    name: str
    exact_in_doubles: bool
    moves_back: bool

    def rig(self, config: JobConfig, now_ms: int) -> Rig: ...

    def frame(self, frame: Frame, time: int) -> tuple[int | None, int]:
        """Return the last window boundary at or before a time, and the first one after it."""
        ...


class Items:
    """The items of a job's records."""

    def __init__(self) -> None:
        self.before: int | None = None
        self.said_idle = False

    def of(self, records: Sequence[Record]) -> list[Item]:
        watermarks: list[Item] = []
        idle: list[Item] = []
        for record in records:
            if record.kind in ("all_idle", "not_all_idle"):
                self.said_idle = record.kind == "all_idle"
                idle += ["idle"] * self.said_idle
            elif record.kind in MOVEMENTS and record.details["coalesced_watermark"] != self.before:
                self.before = record.details["coalesced_watermark"]
                watermarks.append(self.before)
        return watermarks + idle


class DomainRig:
    def __init__(self, config: JobConfig, now_ms: int) -> None:
        self.machine = JobMachine(config, now_ms, numbers=INT64)
        self.seen = self.machine.history.written
        self.found = Items()

    def report(self, tops: Values, watermarks: Values, now_ms: int) -> bool:
        return bool(self.machine.report(tops, now_ms, watermarks=watermarks).applied)

    def declare(self, names: Sequence[str], top: int | None, now_ms: int) -> None:
        self.machine.declare(DIRECT, names, now_ms, None if top is None else dict.fromkeys(names, top))

    def restore(self, name: str, watermark: int | None, now_ms: int) -> None:
        """Set a substream's watermark, even to a lower value, which no command of the machine can do."""
        self.machine.substreams[DIRECT, name].watermark = watermark
        lowest = [substream.watermark for substream in self.machine.substreams.values()]
        least = None if None in lowest else min(w for w in lowest if w is not None)
        self.machine.coalesced_watermark = self.machine.watermark = self.machine.written_watermark = least
        self.machine.recorded, self.found.before = (least, least, least), least

    def idle(self, name: str, now_ms: int) -> None:
        self.machine.idle(DIRECT, [name], now_ms)

    def done(self, name: str, now_ms: int) -> bool:
        return bool(self.machine.done(DIRECT, [name], now_ms).applied)

    def is_all_idle(self, now_ms: int) -> bool:
        return self.machine.summary().all_idle

    def sweep(self, now_ms: int) -> None:
        self.machine.sweep(now_ms)

    def watermarks(self, now_ms: int) -> dict[str, int | None]:
        return {row.substream: row.watermark for row in self.machine.substream_table(now_ms)}

    def items(self) -> list[Item]:
        fresh = list(self.machine.history)[len(self.machine.history) - (self.machine.history.written - self.seen) :]
        self.seen = self.machine.history.written
        return self.found.of(fresh)

    @property
    def said_idle(self) -> bool:
        return self.found.said_idle


class DomainSide:
    name = "domain"
    exact_in_doubles = False
    moves_back = True

    def rig(self, config: JobConfig, now_ms: int) -> Rig:
        return DomainRig(config, now_ms)

    def frame(self, frame: Frame, time: int) -> tuple[int | None, int]:
        return frame.floor(time, INT64), frame.higher(time, INT64)


class StoreRig:
    def __init__(self, driver: Driver, job: str, config: JobConfig, now_ms: int) -> None:
        self.driver, self.job = driver, job
        self.store = driver.store
        self.driver(self.store.configure(job, config, {}, None, now_ms=now_ms))
        self.found = Items()
        self.seen = "-"
        self.items()

    def report(self, tops: Values, watermarks: Values, now_ms: int) -> bool:
        return self._do(self.store.report(self.job, tops, watermarks=watermarks, now_ms=now_ms)).applied

    def declare(self, names: Sequence[str], top: int | None, now_ms: int) -> None:
        tops = None if top is None else dict.fromkeys(names, top)
        self._do(self.store.actions.declare(self.job, DIRECT, names, tops, now_ms=now_ms))

    def restore(self, name: str, watermark: int | None, now_ms: int) -> None:
        if watermark is not None:
            self._do(self.store.actions.restore(self.job, DIRECT, {name: watermark}, now_ms=now_ms))
            self.items()  # the trace expects no emission of a restored watermark

    def idle(self, name: str, now_ms: int) -> None:
        self._do(self.store.actions.idle(self.job, DIRECT, [name], now_ms=now_ms))

    def done(self, name: str, now_ms: int) -> bool:
        return self._do(self.store.actions.done(self.job, DIRECT, [name], now_ms=now_ms)).applied

    def is_all_idle(self, now_ms: int) -> bool:
        return self.driver(self.store.reads.status(self.job, now_ms=now_ms)).summary.all_idle

    def sweep(self, now_ms: int) -> None:
        self.driver(self.store.sweep(self.job, now_ms=now_ms))

    def watermarks(self, now_ms: int) -> dict[str, int | None]:
        rows = self.driver(self.store.reads.substreams(self.job, now_ms=now_ms)).rows
        return {row.substream: row.watermark for row in rows}

    def items(self) -> list[Item]:
        fresh = self.driver(records(self.store, self.job, after=self.seen))
        self.seen = fresh[-1][0] if fresh else self.seen
        return self.found.of([record for _, record in fresh])

    @property
    def said_idle(self) -> bool:
        return self.found.said_idle

    def _do(self, command: Any) -> Effect:
        effect: Effect = self.driver(command)
        return effect


class StoreSide:
    name = "lua"
    exact_in_doubles = True
    moves_back = False

    def __init__(self, make_driver: Callable[[], Driver]) -> None:
        self.driver = make_driver()
        self.serial = itertools.count()

    def _name(self) -> str:
        return f"conformance-{next(self.serial)}"

    def rig(self, config: JobConfig, now_ms: int) -> Rig:
        return StoreRig(self.driver, self._name(), config, now_ms)

    def frame(self, frame: Frame, time: int) -> tuple[int | None, int]:
        job, store = self._name(), self.driver.store
        self.driver(
            store.configure(
                job, JobConfig(LimitingLag(0), FrameThrottle(frame.size, frame.slide, frame.offset)), {}, None, now_ms=0
            )
        )
        floor = self.driver(store.report(job, {"a": time}, now_ms=0)).state.watermark
        higher = self.driver(store.actions.complete(job, now_ms=0)).state.watermark
        assert higher is not None
        return floor, higher

    def close(self) -> None:
        self.driver.close()
