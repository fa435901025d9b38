"""The driver's shell of the protocol: performs effects with threads, locks, HTTP and files."""

import random
import threading
import uuid
from collections.abc import Callable
from typing import Any, Self, TypeVar

from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.backlog import Backlog
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.effects import (
    Effect,
    HasCheckpoint,
    ListBatches,
    Locked,
    Pause,
    Procedure,
    Read,
    ReadPlannedMs,
    ReadQueryId,
    Remove,
    Send,
    StartFlusher,
    Write,
    run,
)
from tidegate_spark.protocol.query import QueryProtocol
from tidegate_spark.protocol.settings import QuerySettings

FLUSH_EVERY_S = 1.0

Result = TypeVar("Result")


class DriverSession:
    """The shell of one run of a query, for the procedures of its batches, heartbeats and backlog.

    It can be pickled before its first batch. Under Spark Connect the hook runs in another process, which then owns the
    files beside the checkpoint. The copy keeps the ``run_id``, the waited time and the watermark token.

    Args:
        settings: The query.
        checkpoint: Its checkpoint.
        owns_files: Whether this process writes the files beside the checkpoint.
    """

    def __init__(self, settings: QuerySettings, checkpoint: Checkpoint, owns_files: bool = True) -> None:
        self.settings, self.checkpoint, self.run_id = settings, checkpoint, str(uuid.uuid4())
        self._begin_process(owns_files)

    def _begin_process(self, owns_files: bool) -> None:
        connection = self.settings.connection
        self._transport = connection.transport()
        self.coordinator = connection.coordinator()
        self.protocol = QueryProtocol(self.settings, self.run_id, self.coordinator, owns_files)
        self._turn, self.lock = threading.Lock(), threading.RLock()
        self._closed = threading.Event()
        self._is_stopped: Callable[[], bool] = self._closed.is_set

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what recreates the session in another process."""
        known = self.coordinator.waited_s, self.coordinator.watermark_token
        return type(self)._in_another_process, (self.settings, self.checkpoint, self.run_id, known)

    @classmethod
    def _in_another_process(
        cls, settings: QuerySettings, checkpoint: Checkpoint, run_id: str, known: tuple[float, str | None]
    ) -> Self:
        session = cls(settings, checkpoint)
        session.run_id = run_id
        session._begin_process(owns_files=True)
        session.coordinator.waited_s, session.coordinator.watermark_token = known
        return session

    @property
    def log(self) -> QueryLog:
        """The log of the query."""
        return self.protocol.log

    @property
    def backlog(self) -> Backlog:
        """The backlog of the query."""
        return self.protocol.backlog

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """Stop waiting for the coordinator when ``stopped`` returns True."""
        self._is_stopped = lambda: self._closed.is_set() or stopped()

    def is_stopped(self) -> bool:
        """Return whether the query was stopped."""
        return self._is_stopped()

    def close(self) -> None:
        """Stop all waiting and the flusher, because the query has ended. Its next run reports the backlog."""
        self._closed.set()

    # -- effects --------------------------------------------------------------------------------------------------

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure of the protocol."""
        return run(procedure, self._perform, self._turn)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request, timeout_s):
                return self._transport.send(request, timeout_s)
            case Pause(seconds):
                if self._is_stopped():
                    return True
                self.settings.connection.clock.sleep(seconds)
                return False
            case Locked(procedure):
                with self.lock:
                    return self.run(procedure)
            case StartFlusher():
                threading.Thread(target=self._flush, name="tidegate-backlog", daemon=True).start()
                return None
            case _:
                return perform_on_files(self.checkpoint, effect)

    def _flush(self) -> None:
        try:
            while not self._closed.wait(random.uniform(FLUSH_EVERY_S / 2, FLUSH_EVERY_S)):
                if not self.run(self.backlog.flush_again()):
                    return
        finally:
            self.backlog.stop_flusher()


def perform_on_files(checkpoint: Checkpoint, effect: Effect) -> Any:
    """Perform an effect on the files of a checkpoint."""
    match effect:
        case Read(name):
            return checkpoint.read(name)
        case Write(name, document):
            return checkpoint.write(name, document)
        case Remove(name):
            return checkpoint.delete(name)
        case ListBatches(kind):
            return checkpoint.batches(kind)
        case HasCheckpoint():
            return checkpoint.started()
        case ReadQueryId():
            return checkpoint.query_id
        case ReadPlannedMs(batch_id):
            return checkpoint.planned_ms(batch_id)
        case _:
            raise TypeError(f"unknown effect {effect!r}")
