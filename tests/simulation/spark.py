"""Spark in a simulation: queries with their checkpoints, and the drivers that run their batches."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from tests.simulation.checkpoint import Classify, Disk, Finish, Plan, Planned, ReadEvidence
from tests.simulation.faults import Faults
from tests.simulation.frames import FRAME_MS
from tests.simulation.knowledge import Violation, highest
from tests.simulation.loop import HostClock, Loop
from tests.simulation.network import Network
from tests.simulation.observer import Observer
from tests.simulation.source import Row, Source
from tests.simulation.tasks import WAITING, Lock, Task
from tests.simulation.topic import Reading, TopicOffsets
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import TidegateError
from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol import effects
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.coordinator import Answer
from tidegate_spark.protocol.effects import Effect, NoAnswer, Pause, Procedure, Response, Send
from tidegate_spark.protocol.evidence import ALL_CAUGHT_UP, NOTHING_KNOWN, BatchInput, Evidence
from tidegate_spark.protocol.fold import Fold, slot_of
from tidegate_spark.protocol.query import QueryProtocol
from tidegate_spark.protocol.retry import OnOutage
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.protocol.transport import HttpTransport
from tidegate_spark.sources.running import DriverEvidenceReader

TRIGGER_S = 2.0
WINDOWS_S = 1.0
FLUSH_EVERY_S = 1.0
LONGEST_RESTART_MS = 20_000
LONGEST_CLOCK_STEP_MS = 600_000
LONGEST_CUT_MS = 30_000

Rows = Mapping[str, Sequence[Row]]


class Conflict(Exception):
    """Spark found that another run has written the same file of its log."""


@dataclass
class Cluster:
    """What the queries of a simulation share."""

    loop: Loop
    random: Random
    faults: Faults
    network: Network
    observer: Observer
    config: JobConfig
    lose_state: Callable[[], None]
    lose_tail: Callable[[], None]


class Query:
    """A query with its checkpoint, its input, and the drivers that run it.

    Args:
        cluster: What the queries share.
        name: Name of the query.
        sources: Its substreams by name.
        declared: The substreams that its program declares.
        reading: How it reads a topic whose partitions are its substreams; None: each batch has all rows, and only
            triggers without rows are evidence.
        on_outage: What its batches do while the coordinator does not answer.
        has_windows: Whether it writes windows after the commit of their rows.

    Attributes:
        last_error: The error that ended the last run that ended by itself.
        finishers: The run that has finished each batch.
        table: For each written batch, the first version of the query's table with its rows.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        sources: Mapping[str, Source],
        declared: Sequence[str],
        on_outage: OnOutage,
        reading: Reading | None = None,
        has_windows: bool = False,
    ) -> None:
        self.has_windows = has_windows
        self.cluster, self.name, self.sources, self.on_outage = cluster, name, sources, on_outage
        self.reading = reading
        self.declared = tuple(declared)
        self.disk = Disk()
        self.drivers: list[Driver] = []
        self.last_error = "none"
        self.finishers: dict[int, str] = {}
        self.table: dict[int, int] = {}

    def start(self) -> None:
        """Start a driver."""
        driver = Driver(self, f"{self.name}-run-{len(self.drivers) + 1}")
        self.drivers.append(driver)
        driver.spawn(driver.main(), is_main=True)

    def restart(self) -> None:
        """Start a driver unless one is running."""
        if not any(driver.is_running for driver in self.drivers):
            if "pinned_watermark_conflict" in self.last_error:
                self._repair()
            self.start()

    def restart_later(self) -> None:
        """Start a driver after a pause unless one is running then."""
        self.cluster.loop.after(self.cluster.random.randrange(LONGEST_RESTART_MS), self.restart)

    def _repair(self) -> None:
        """Remove the stored pinned watermark that the coordinator refuses, as the documentation tells an operator to.

        A begin that was delayed in the network, until after a loss of state, has pinned another watermark.
        """
        batch_id = max(self.disk.offsets)
        self.disk.documents.pop(f"pinned_watermarks/{batch_id}", None)
        self.cluster.observer.repaired(self.name, batch_id)

    def replace_drivers(self) -> None:
        """Kill all drivers and start another one, which reports what they have left."""
        for driver in self.drivers:
            driver.kill()
        self.start()

    def rows(self, batch_id: int) -> Rows:
        """Return the rows of a planned batch by substream."""
        ends = self.disk.offsets[batch_id].ends
        starts = self.disk.offsets[batch_id - 1].ends if batch_id else {}
        rows = {name: source.read(starts.get(name, 0), ends[name]) for name, source in self.sources.items()}
        return {name: of_substream for name, of_substream in rows.items() if of_substream}

    def is_caught_up(self) -> bool:
        """Return whether all rows that have arrived are in finished batches, and nothing is left to report."""
        now_ms, disk = self.cluster.loop.now_ms, self.disk
        if not disk.offsets or len(disk.offsets) != len(disk.finished):
            return False
        ends = disk.offsets[max(disk.offsets)].ends
        has_backlog = any(name.startswith("backlog/") for name in disk.documents)
        return not has_backlog and all(ends[name] == s.length_at(now_ms) for name, s in self.sources.items())


def _fail() -> bool:
    """Fail: the client asks whether its query was stopped only if it cannot read the offsets."""
    raise Violation("Live: the client cannot read the offsets")


class Driver:
    """One run of a query in a process of its own."""

    def __init__(self, query: Query, run_id: str) -> None:
        self._query, self._cluster, self.run_id = query, query.cluster, run_id
        self.lock, self.clock = Lock(), HostClock(query.cluster.loop)
        self.is_alive = self.is_running = True
        self._planned: int | None = None
        self._cut_off_from_ms = self._cut_off_until_ms = 0
        self._overtaken: int | None = None
        self._has_created = False
        transport = cast("type[HttpTransport]", lambda *_: None)
        connection = JobConnection("", "j", None, query.cluster.config, query.on_outage, self.clock, transport)
        settings = QuerySettings(connection, query.name, query.declared, tells_output=query.has_windows)
        self.protocol = QueryProtocol(settings, run_id, owns_files=True)
        self._offsets = TopicOffsets(query.cluster.loop, query.disk, query.sources)
        self._evidence = None if query.reading is None else self._evidence_reader(query.reading)
        self._waits_from_ms = query.cluster.loop.now_ms

    # -- procedures -----------------------------------------------------------------------------------------------

    def main(self) -> Procedure[None]:
        """Run batches for as long as the query runs."""
        yield from self.protocol.start()
        finished = max(self._query.disk.finished, default=-1)
        version = yield effects.Read(f"windows/{finished}")
        yield from self.protocol.started(version and version["closed"], finished)
        while True:
            batch_id = yield Plan()
            if batch_id is None:
                self.spawn(self._heartbeat())
            else:
                before = (yield effects.Read(f"windows/{batch_id - 1}")) or {"closed": None}
                self.protocol.calls.output_watermark = before["closed"]
                opened = yield from self.protocol.begin(batch_id, (yield ReadEvidence(is_idle=False)))
                fold = yield Classify(opened)
                yield from self.protocol.report(opened, fold)
                answer = yield from self.protocol.commit(opened, fold)
                if self._query.has_windows:
                    yield from self._write_windows(opened, before["closed"], answer)
                yield Finish(batch_id)
            yield Pause(TRIGGER_S)

    def _write_windows(self, opened: OpenBatch, before: int | None, answer: Answer | None) -> Procedure[None]:
        """Write the windows that a batch closes; a replay writes the same ones."""
        version = yield effects.Read(f"windows/{opened.batch_id}")
        if version is None:
            reached = None if answer is None else answer["coalesced_watermark"]
            version = {"closed": highest(highest(before, opened.stored.pinned_watermark), reached)}
            yield effects.Write(f"windows/{opened.batch_id}", version)
        yield Pause(WINDOWS_S)
        self._cluster.observer.wrote(self._query.name, version["closed"])
        if answer is not None:
            yield from self.protocol.wrote(version["closed"], opened.batch_id)

    def _heartbeat(self) -> Procedure[None]:
        """Send a heartbeat after a trigger without a batch. The next batch may be planned before."""
        finished, began_ms = max(self._query.disk.finished, default=None), self._cluster.loop.now_ms
        if self._evidence is not None:
            yield Pause(self._cluster.random.choice((0.0, 0.5, 1.5 * TRIGGER_S)))
        evidence = yield ReadEvidence(is_idle=True)
        yield from self.protocol.heartbeat((self._cluster.loop.now_ms - began_ms) / 1000, finished, evidence)

    def _evidence_reader(self, reading: Reading) -> DriverEvidenceReader:
        offsets, log = self._offsets, QueryLog("j", self._query.name)
        brokers = offsets.as_brokers() if reading.reads_committed else None
        now = self.protocol.calls.now
        return DriverEvidenceReader(offsets.as_query(), reading.sources, reading.names, brokers, log, _fail, now)

    def _flush(self) -> Procedure[None]:
        try:
            while not (yield Pause(FLUSH_EVERY_S)) and (yield from self.protocol.backlog.flush_again()):
                pass
        finally:
            self.protocol.backlog.stop_flusher()

    def spawn(self, procedure: Procedure[Any], *, is_main: bool = False) -> None:
        """Run a procedure in a thread of its own."""

        def ended(_: Any, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, TidegateError | Conflict):
                raise error
            if is_main:
                self._end(str(error))

        Task(self, procedure, ended).advance()

    def _end(self, reason: str) -> None:
        """End the query because its batch has failed. The process ends later."""
        self._query.last_error = reason
        self._cluster.observer.note(f"{self.run_id} ends: {reason}")
        self.is_running = False
        self._cluster.loop.after(self._cluster.random.randrange(LONGEST_RESTART_MS), self._exit)
        self._query.restart_later()

    def _exit(self) -> None:
        self.is_alive = False

    def kill(self) -> None:
        """Kill the process."""
        self._cluster.observer.note(f"{self.run_id} is killed")
        was_running, self.is_running, self.is_alive = self.is_running, False, False
        if was_running:
            self._query.restart_later()

    # -- effects --------------------------------------------------------------------------------------------------

    def perform(self, task: Task, effect: Effect) -> Any:
        """Perform an effect, unless the driver dies before or after it."""
        cluster = self._cluster
        cluster.loop.steps += 1
        if self._dies_at(effect) or not self.is_alive or self._dies("driver killed before an effect"):
            return WAITING
        result = self._perform(task, effect)
        if self._dies("driver killed after an effect"):
            return WAITING
        if result is not WAITING and cluster.random.random() < 0.2:
            cluster.loop.after(cluster.random.randrange(20), self._continue, task, result)
            return WAITING
        return result

    def _dies_at(self, effect: Effect) -> bool:
        """Return whether the driver dies at an effect before which kills have found defects."""
        match effect:
            case Finish():
                return self._dies("driver killed before a batch is finished")
            case Send(method="PUT", path=path) if "/batches/" in path and self._has_created:
                self._has_created = False
                return self._dies("driver killed after it has created the job")
        return False

    def _dies(self, kind: str) -> bool:
        cluster = self._cluster
        if cluster.faults.happens(kind):
            self.kill()
            if cluster.faults.happens("tail lost after a kill"):
                cluster.loop.after(cluster.random.randrange(LONGEST_RESTART_MS // 2), cluster.lose_tail)
            return True
        return False

    def _perform(self, task: Task, effect: Effect) -> Any:
        match effect:
            case Send():
                return self._send(task, effect)
            case Pause(seconds):
                if not self.is_running:
                    return True
                self._cluster.loop.after(int(1000 * seconds), self._continue, task, False)
                return WAITING
            case effects.StartFlusher():
                self.spawn(self._flush())
                return None
            case effects.ReadQueryId():
                return f"checkpoint-of-{self._query.name}"
            case Plan():
                return self._plan()
            case ReadEvidence(is_idle):
                return self._read_evidence(is_idle)
            case Classify(batch):
                return self._classify(batch)
            case Finish(batch_id):
                return self._finish(batch_id)
            case _:
                return self._query.disk.perform(effect)

    def _continue(self, task: Task, result: Any) -> None:
        if self.is_alive:
            task.advance(result)

    def _send(self, task: Task, request: Send) -> Any:
        observer = self._cluster.observer
        self._check_overtaken(request)
        request = self._with_outputs(request)
        sent = observer.sends(self.run_id, request)

        def receive(outcome: Response | NoAnswer) -> None:
            if not self.is_alive:
                return
            observer.receives(sent, outcome)
            self._look_for_other_runs(request, outcome)
            if isinstance(outcome, NoAnswer):
                task.advance(error=outcome)
            else:
                self._has_created |= (request.method, request.path, outcome.status) == ("PUT", "/v1/jobs/j", 200)
                task.advance(outcome)

        if self._cut_off_from_ms <= self._cluster.loop.now_ms < self._cut_off_until_ms:
            self._cluster.loop.after(int(1000 * request.timeout_s), receive, NoAnswer("cut off"))
        else:
            self._cluster.network.send(request, receive)
        return WAITING

    def _with_outputs(self, request: Send) -> Send:
        """Return a begin, commit or heartbeat that tells the version of the query's table, and any other request."""
        if request.body is None or not re.search(r"/batches/\d+(:commit)?$|:heartbeat$", request.path):
            return request
        table = {"table": self._query.name, "version": str(len(self._query.table))}
        return replace(request, body={**request.body, "outputs": [table]})

    def _look_for_other_runs(self, request: Send, outcome: Response | NoAnswer) -> None:
        """Record whether another run had finished the batch of this run when the coordinator had lost it."""
        is_refused = isinstance(outcome, Response) and outcome.status in (404, 409)
        is_of_batch = request.path.endswith((":report", ":commit")) and not self._query.on_outage.continues
        if is_refused and is_of_batch and self._planned is not None:
            finisher = self._query.finishers.get(self._planned, self.run_id)
            self._overtaken = None if finisher == self.run_id else self._planned

    def _check_overtaken(self, request: Send) -> None:
        """Check that this run does not begin a batch again that another run has finished."""
        if self._overtaken is not None and request.path.endswith(f"/batches/{self._overtaken}"):
            raise Violation(f"Replay-exact: {self.run_id} begins batch {self._overtaken} again, which was finished")

    def _plan(self) -> int | None:
        cluster, disk = self._cluster, self._query.disk
        if cluster.faults.happens("clock of a driver stepped"):
            self.clock.offset_ms = cluster.random.randrange(-LONGEST_CLOCK_STEP_MS, LONGEST_CLOCK_STEP_MS)
        if cluster.faults.happens("second driver"):
            self._query.start()
            # A second driver often starts because the first one is cut off, before its batch or within it.
            self._cut_off_from_ms = cluster.loop.now_ms + cluster.random.choice((0, cluster.random.randrange(20)))
            self._cut_off_until_ms = cluster.loop.now_ms + cluster.random.choice((0, LONGEST_CUT_MS))
            if cluster.faults.happens("state lost after a second driver"):
                self._cut_off_until_ms = cluster.loop.now_ms + LONGEST_CUT_MS
                cluster.loop.after(cluster.random.randrange(LONGEST_CUT_MS), cluster.lose_state)
        batch_id, now_ms, reading = self._next_batch(), cluster.loop.now_ms, self._query.reading or Reading()
        if batch_id not in disk.offsets:
            before = disk.offsets[batch_id - 1].ends if batch_id else {}
            self._offsets.latest = reading.readable(self._query.sources, now_ms)
            waited_ms, is_ended = now_ms - self._waits_from_ms, all(s.is_ended for s in self._query.sources.values())
            ends = reading.plan(now_ms, before, self._offsets.latest, waited_ms, is_ended)
            if ends is None:
                return None
            self._waits_from_ms = now_ms
            disk.offsets[batch_id] = Planned(int(1000 * self.clock.time()), ends)
        elif self._planned is not None:
            raise Conflict(f"another run has planned batch {batch_id}")
        self._planned = batch_id
        return batch_id

    def _read_evidence(self, is_idle: bool) -> BatchInput | Evidence | None:
        if self._evidence is None:
            return ALL_CAUGHT_UP if is_idle else NOTHING_KNOWN
        return self._evidence.when_idle() if is_idle else self._evidence.of_batch()

    def _next_batch(self) -> int:
        """Return the batch after the last one of this run, or the first unfinished batch in Spark's log."""
        if self._planned is not None:
            return self._planned + 1
        latest = max(self._query.disk.offsets, default=-1)
        return latest + 1 if latest in self._query.disk.finished else max(latest, 0)

    def _classify(self, opened: OpenBatch) -> Fold:
        pinned = opened.stored.pinned_watermark
        rows = self._query.rows(opened.batch_id)
        late = {name: [pinned is not None and row.event_time < pinned for row in rows[name]] for name in rows}
        is_finished = opened.batch_id in self._query.disk.finished
        self._cluster.observer.classified(self._query.name, self.run_id, opened, rows, late, is_finished)
        self._query.table.setdefault(opened.batch_id, len(self._query.table) + 1)
        none = [0] * len(rows)
        highest: list[int | None] = [max(row.event_time for row in of_substream) for of_substream in rows.values()]
        lengths, slots = [len(of_substream) for of_substream in rows.values()], dict[int, list[int]]()
        for name, of_substream in rows.items():
            for row, is_late in zip(of_substream, late[name], strict=True):
                counts = slots.setdefault(row.event_time // FRAME_MS, [0, 0, 0])
                counts[0] += 1
                counts[2] += is_late
        fold = Fold(list(rows), highest, lengths, none, [sum(one) for one in late.values()], none, none)
        if slot_of(self._cluster.config) is None:
            return fold
        return replace(fold, slot=FRAME_MS, slots=[[number, *slots[number]] for number in sorted(slots)])

    def _finish(self, batch_id: int) -> None:
        if batch_id in self._query.disk.finished:
            raise Conflict(f"another run has finished batch {batch_id}")
        self._query.disk.finished.add(batch_id)
        self._query.finishers[batch_id] = self.run_id
