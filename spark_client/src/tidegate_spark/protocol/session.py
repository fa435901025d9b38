"""The driver's runner of procedures, which performs effects with threads, locks, HTTP and files."""

import random
import threading
import uuid
from collections.abc import Callable
from typing import Any

from tidegate_spark.protocol import effects
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.effects import Effect, Procedure, Result
from tidegate_spark.protocol.query import QueryProtocol
from tidegate_spark.protocol.row_warnings import RowWarnings
from tidegate_spark.protocol.settings import QuerySettings

FLUSH_EVERY_S = 1.0


class DriverSession:
    """The runner of the procedures of one run of a query, for its batches, heartbeats and backlog.

    A session can be pickled before its first batch. Under Spark Connect, the hook runs in another process, which then
    owns the files beside the checkpoint. The copy keeps the ``run_id``, the waited time and the watermark token.

    Args:
        settings: The settings of the query.
        checkpoint: The query's checkpoint.
        owns_files: Whether this process writes the files beside the checkpoint.
        run_id: Id of the run; None if the run is new.
        waited_s: Time that the run has waited for the coordinator, in seconds.
        watermark_token: The latest watermark token of the run.

    Attributes:
        is_stopped: A function that returns whether the query was stopped.
        row_warnings: The warnings about the rows of the run.
    """

    def __init__(
        self,
        settings: QuerySettings,
        checkpoint: Checkpoint,
        owns_files: bool = True,
        run_id: str | None = None,
        waited_s: float = 0.0,
        watermark_token: str | None = None,
    ) -> None:
        self.settings, self.checkpoint, self.run_id = settings, checkpoint, run_id or str(uuid.uuid4())
        self._transport = settings.connection.transport()
        self.protocol = QueryProtocol(settings, self.run_id, owns_files)
        self.calls, self.log = self.protocol.calls, self.protocol.calls.log
        self.calls.waited_s, self.calls.watermark_token = waited_s, watermark_token
        self.row_warnings = RowWarnings(self.log, settings.connection.clock)
        self._turn, self.lock = threading.Lock(), threading.RLock()
        self._closed = threading.Event()
        self.is_stopped: Callable[[], bool] = self._closed.is_set

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments for the process of the hook, which then owns the files."""
        known = self.run_id, self.calls.waited_s, self.calls.watermark_token
        return DriverSession, (self.settings, self.checkpoint, True, *known)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """Stop waiting for the coordinator when ``stopped`` returns True."""
        self.is_stopped = lambda: self._closed.is_set() or stopped()

    def close(self) -> None:
        """Stop the flusher and all waiting, because the query has ended. The next run reports the backlog."""
        self._closed.set()
        self.row_warnings.close()

    # -- effects --------------------------------------------------------------------------------------------------

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure of the protocol."""
        return effects.run(procedure, self._perform, self._turn)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case effects.Send():
                return self._transport.send(effect)
            case effects.Pause(seconds):
                if self.is_stopped():
                    return True
                self.settings.connection.clock.sleep(seconds)
                return False
            case effects.Locked(procedure):
                with self.lock:
                    return self.run(procedure)
            case effects.StartFlusher():
                threading.Thread(target=self._flush, name="tidegate-backlog", daemon=True).start()
                return None
            case _:
                return perform_on_files(self.checkpoint, effect)

    def _flush(self) -> None:
        try:
            while not self._closed.wait(random.uniform(FLUSH_EVERY_S / 2, FLUSH_EVERY_S)):
                if not self.run(self.protocol.backlog.flush_again()):
                    return
        finally:
            self.protocol.backlog.stop_flusher()


def perform_on_files(checkpoint: Checkpoint, effect: Effect) -> Any:
    """Perform an effect on the files of a checkpoint."""
    match effect:
        case effects.Read(name):
            return checkpoint.read(name)
        case effects.Write(name, document):
            return checkpoint.write(name, document)
        case effects.Remove(name):
            return checkpoint.delete(name)
        case effects.ListBatches(kind):
            return checkpoint.batches(kind)
        case effects.HasCheckpoint():
            return checkpoint.started()
        case effects.ReadQueryId():
            return checkpoint.query_id
        case effects.ReadPlannedMs(batch_id):
            return checkpoint.planned_ms(batch_id)
        case effects.HasFinished(batch_id):
            return checkpoint.has_finished(batch_id)
        case _:
            raise TypeError(f"unknown effect {effect!r}")
