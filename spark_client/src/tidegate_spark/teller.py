"""Telling the coordinator what it has missed: at once where it can be reached, else by a thread, again and again.

Invariants: batches are told in their order; one that begins is told nothing of before all of them are; and while there
are untold ones, at most one thread is telling.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.errors import CoordinatorUnavailable, TidegateError
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import ONE_ATTEMPT, Patience

PAUSE_S = 1.0

Tell = Callable[[Untold, float, Patience], None]
"""Tells the coordinator of one batch, and for how long (in seconds) it has heard nothing of the query."""


class Teller:
    """The untold batches of one run, and whoever tells them.

    ``in_background``: what cannot be told at once is told beside the batches that go on meanwhile. It can be pickled
    as long as nothing is under way.
    """

    def __init__(self, backlog: Backlog, tell: Tell, in_background: bool, log: QueryLog) -> None:
        self._backlog, self._tell, self._in_background, self._log = backlog, tell, in_background, log
        self._silent_since_s: float | None = None
        self._all_told = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        assert self._thread is None, "it travels before its first batch, or not at all"
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_stopped")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _stopped=threading.Event())

    @property
    def all_told(self) -> bool:
        """Whether the coordinator knows of every batch that is done, as far as this process knows."""
        return self._all_told

    def look(self) -> None:
        """Finds out whether an earlier run has left something untold."""
        self._all_told = not self._backlog.batches()

    def put_off(self, untold: Untold) -> None:
        """Keeps what is to be told later."""
        with self._lock:
            self._backlog.write(untold)
            self._all_told = False
        self._send()

    def tell_before(self, batch_id: int, patience: Patience) -> bool:
        """Whether all is told that lies before a batch which begins; tells it, unless the thread is at it.

        :raises CoordinatorUnavailable, Refused: when it cannot be told.
        """
        if self._all_told:
            return True
        with self._lock:
            if self._thread is not None:
                return False
        self._backlog.forget(batch_id)  # what a replay does again, it tells anew
        try:
            self._tell_all(patience)
        except CoordinatorUnavailable:
            self._send()
            raise
        return self._done()

    def close(self) -> None:
        """The query has ended; what is still untold is told by its next start."""
        self._stopped.set()

    def _tell_all(self, patience: Patience) -> None:
        for batch_id in self._backlog.batches():
            untold = self._backlog.read(batch_id)
            if self._silent_since_s is None:
                self._silent_since_s = untold.began_s
            self._tell(untold, max(0.0, time.time() - self._silent_since_s), patience)
            self._backlog.forget(batch_id)
            self._log.info("the coordinator was told of this batch", extra={"batch": batch_id})

    def _done(self) -> bool:
        """Whether nothing is left; if so, the thread is dismissed."""
        with self._lock:
            if self._backlog.batches():
                return False
            self._all_told, self._silent_since_s, self._thread = True, None, None
            return True

    def _send(self) -> None:
        with self._lock:
            if self._in_background and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate-teller", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(random.uniform(PAUSE_S / 2, PAUSE_S)):
                try:
                    self._tell_all(ONE_ATTEMPT)
                except CoordinatorUnavailable:
                    continue
                if self._done():
                    return
        except TidegateError as error:
            self._log.error("the coordinator refused what it was told late: %s", error)
        finally:
            # Whatever has ended it: the next begin tells the rest itself, and runs into the same.
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
