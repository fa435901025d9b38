"""A query and its coordinator in virtual time, without threads, sockets, files or sleeping."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.clock import VirtualClock
from tidegate_spark.config import JobConfig
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.effects import (
    Effect,
    HasCheckpoint,
    HasFinished,
    ListBatches,
    Locked,
    NoAnswer,
    Pause,
    Procedure,
    Read,
    ReadPlannedMs,
    ReadQueryId,
    Remove,
    Response,
    Send,
    StartFlusher,
    Write,
    run,
)
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.query import QueryProtocol
from tidegate_spark.protocol.retry import OnOutage
from tidegate_spark.protocol.settings import QuerySettings

LAG = 10_000

Result = TypeVar("Result")


class Died(BaseException):
    """The driver was killed. No handler of ordinary errors runs."""


@dataclass
class ModelJob:
    """The coordinator's state of a job with one query."""

    epoch: str
    config: JobConfig
    max_event_times: dict[str, int] = field(default_factory=dict)
    proven: int | None = None
    pinned_watermarks: dict[int, int | None] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    latest: int | None = None
    open_run: str | None = None
    staged: dict[str, int | None] = field(default_factory=dict)

    @property
    def watermark(self) -> int | None:
        """The coalesced watermark; it never goes back."""
        low = min(self.max_event_times.values(), default=None)
        known = [value for value in (None if low is None else low - LAG, self.proven) if value is not None]
        self.proven = max(known, default=None)
        return self.proven

    def commit_staged(self) -> None:
        """Commit the staged reports."""
        for name, time in self.staged.items():
            if time is not None:
                self.max_event_times[name] = max(time, self.max_event_times.get(name, time))
        self.staged, self.open_run = {}, None


class ModelCoordinator:
    """A model of the coordinator for one job and one query, with the answers on which the client depends."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.away = clock, False
        self.job: ModelJob | None = None
        self._epochs = 0
        self.waited_ms: list[int] = []

    def handle(self, request: Send) -> Response:
        """Answer a request."""
        body, path = dict(request.body or {}), request.path.removeprefix("/v1/jobs/j")
        if request.method == "PUT" and not path:
            return self._create(body)
        if self.job is None:
            return self._refuse(404, "job_not_found")
        self._prove(body)
        self.waited_ms += [body["waited_ms"]] if "waited_ms" in body else []
        if path == ":declare":
            return self._declare(self.job, body)
        if path == ":report":
            return self._report(self.job, body)
        if path == "/queries":
            return Response(200, b'{"queries": []}')
        if path.endswith(":heartbeat"):
            applied = self.job.open_run is None and body["after_batch"] == self.job.latest
            return self._answer(self.job, applied=applied)
        if found := re.fullmatch(r"/queries/q/batches/(\d+)(:commit)?", path):
            return (self._commit if found[2] else self._begin)(self.job, int(found[1]), body)
        return self._answer(self.job)

    def _create(self, config: JobConfig) -> Response:
        if self.job is not None:
            return self._refuse(412, "job_exists")
        self._epochs += 1
        self.job = ModelJob(f"e{self._epochs}", config)
        return self._answer(self.job)

    def _prove(self, body: dict[str, Any]) -> None:
        assert self.job is not None
        token = body.get("watermark_token")
        if token and (value := token.partition(".")[2]) != "None":
            self.job.proven = max(int(value), int(value) if self.job.proven is None else self.job.proven)

    def _declare(self, job: ModelJob, body: dict[str, Any]) -> Response:
        for name, time in zip(body["substreams"], body.get("max_event_times", []), strict=False):
            if time is not None:
                job.max_event_times[name] = max(time, job.max_event_times.get(name, time))
        return self._answer(job)

    def _begin(self, job: ModelJob, batch_id: int, body: dict[str, Any]) -> Response:
        previous, was_open = job.latest, job.open_run is not None
        if previous is not None and batch_id < previous:
            return self._refuse(409, "batch_superseded")
        if "pinned_watermark" in body:
            kept = job.pinned_watermarks.get(batch_id, body["pinned_watermark"])
            if kept != body["pinned_watermark"]:
                return self._refuse(409, "pinned_watermark_conflict")
            job.pinned_watermarks[batch_id] = kept
        if was_open and previous != batch_id:
            job.commit_staged()  # Spark begins a batch only after it has finished the previous one
        replayed = batch_id in job.pinned_watermarks
        pinned_watermark = job.pinned_watermarks.setdefault(batch_id, job.watermark)
        if previous != batch_id or was_open:
            if job.open_run != body["run_id"]:
                job.staged = {}
            job.latest, job.open_run = batch_id, body["run_id"]
        return self._answer(
            job,
            pinned_watermark=pinned_watermark,
            latest_event_time=None,
            joined=False,
            replayed=replayed,
            previous_batch_id=previous,
            previous_open=was_open,
        )

    def _report(self, job: ModelJob, body: dict[str, Any]) -> Response:
        batch = body["batch"]
        if job.latest != batch["batch_id"]:
            return self._refuse(409, "batch_not_begun")
        if job.open_run is not None:
            job.staged |= dict(zip(body["substreams"], body["max_event_times"], strict=True))
        return self._answer(job)

    def _commit(self, job: ModelJob, batch_id: int, body: dict[str, Any]) -> Response:
        if job.latest != batch_id:
            return self._refuse(409, "batch_not_begun")
        is_open = job.open_run is not None
        if is_open:
            if body["reported"] is not None and len(job.staged) < body["reported"]:
                return self._refuse(409, "reports_missing")
            if body["rows"] is not None:
                job.rows[batch_id] = sum(body["rows"]["on_time"])
            job.commit_staged()
        return self._answer(job, applied=is_open)

    def _answer(self, job: ModelJob, **more: Any) -> Response:
        watermark = job.watermark
        answer = {
            "state_epoch": job.epoch,
            "incarnation": 1,
            "revision": 1,
            "config": {"max_future_skew_ms": None, **job.config},
            "now_ms": self.clock.now_ms(),
            "watermark": watermark,
            "coalesced_watermark": watermark,
            "watermark_token": f"{job.epoch}.{watermark}",
            **more,
        }
        return Response(200, json.dumps(answer).encode())

    def _refuse(self, status: int, code: str) -> Response:
        return Response(status, json.dumps({"code": code, "detail": code}).encode())


class World:
    """A coordinator, a checkpoint, and the effects that the drivers of a query perform on them.

    Attributes:
        dies_at: Number of the point at which the driver dies. Each effect has two points, before and after it.
        points: The points so far, by name.
        flusher_started: Whether a driver has asked for its flusher.
        stopped: Whether the query was stopped.
        before: Called before each effect.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.coordinator = ModelCoordinator(self.clock)
        self.documents: dict[str, Any] = {}
        self.dies_at: int | None = None
        self.points: list[str] = []
        self.flusher_started = self.stopped = False
        self.before: Callable[[Effect], None] = lambda effect: None

    def perform(self, effect: Effect) -> Any:
        """Perform an effect, unless the driver dies before or after it."""
        if isinstance(effect, Locked):
            return run(effect.procedure, self.perform)
        self._reach(f"before {effect}")
        self.before(effect)
        result = self._perform(effect)
        self._reach(f"after {effect}")
        return result

    def _reach(self, point: str) -> None:
        self.points.append(point)
        if self.dies_at is not None and len(self.points) > self.dies_at:
            raise Died(point)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send():
                if self.coordinator.away:
                    raise NoAnswer("connection refused")
                return self.coordinator.handle(copy.deepcopy(effect))
            case Pause(seconds):
                self.clock.advance(0 if self.stopped else seconds)
                return self.stopped
            case Read(name):
                return copy.deepcopy(self.documents.get(name))
            case Write(name, document):
                self.documents[name] = json.loads(json.dumps(document))
            case Remove(name):
                self.documents.pop(name, None)
            case ListBatches(kind):
                names = (name.split("/") for name in self.documents)
                return [int(name[1]) for name in names if name[0] == kind and len(name) > 1]
            case HasCheckpoint():
                return True
            case ReadQueryId():
                return "checkpoint"
            case ReadPlannedMs():
                return self.clock.now_ms()
            case HasFinished():
                return False
            case StartFlusher():
                self.flusher_started = True
            case _:
                raise TypeError(effect)
        return None


class Driver:
    """One run of the query ``q``."""

    def __init__(self, world: World, number: int, on_outage: OnOutage) -> None:
        self.world = world
        config: JobConfig = {"policy": {"type": "limiting_lag", "lag_ms": LAG}}
        connection = JobConnection("http://model", "j", None, config, on_outage, world.clock)
        self.protocol = QueryProtocol(QuerySettings(connection, "q"), f"run-{number}", True)

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure in the world."""
        return run(procedure, self.world.perform)

    def begin(self, batch_id: int) -> OpenBatch:
        """Begin a batch."""
        return self.run(self.protocol.begin(batch_id))

    def finish(self, opened: OpenBatch, fold: Fold) -> None:
        """Report and commit a batch."""
        self.run(self.protocol.report(opened, fold))
        self.run(self.protocol.commit(opened, fold))

    def batch(self, batch_id: int, fold: Fold) -> OpenBatch:
        """Run a whole batch."""
        opened = self.begin(batch_id)
        self.finish(opened, fold)
        return opened

    def heartbeat(self, after_batch: int | None) -> None:
        """Send a heartbeat."""
        self.run(self.protocol.heartbeat(0.0, after_batch))
