"""Telling the coordinator what it has missed: at once where it can be reached, else by a thread, again and again.

Invariants: batches are told in their order; one that begins is told nothing of before all of them are; and while there
are untold ones, at most one thread is telling.
"""

import random
import threading
from collections.abc import Callable
from typing import Any

from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.coordinator import Coordinator, Moment
from tidegate_spark.errors import CoordinatorUnavailable, TidegateError
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import ONE_ATTEMPT, Patience

PAUSE_S = 1.0

Tell = Callable[[Untold, Moment, Patience], None]
"""Tells the coordinator of one batch, which has heard nothing of the query since a moment."""


class Teller:
    """The untold batches of one run, and whoever tells them.

    While there are any, the coordinator hears nothing of the query, and that is nobody's silence: it counts as waiting.
    ``in_background``: what cannot be told at once is told beside the batches that go on meanwhile. It can be pickled
    as long as no batch has begun in this process; the copy finds out anew what is untold.
    """

    def __init__(
        self, backlog: Backlog, coordinator: Coordinator, tell: Tell, in_background: bool, log: QueryLog
    ) -> None:
        self._backlog, self._coordinator, self._tell = backlog, coordinator, tell
        self._in_background, self._log = in_background, log
        self._start()

    def _start(self) -> None:
        self._all_told = False  # as far as is known before a look
        self._unheard_since: Moment | None = None
        self._heard = Moment(0.0, 0.0)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_backlog", "_coordinator", "_tell", "_in_background", "_log")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def now(self) -> Moment:
        return Moment(self._coordinator.clock.time(), self._coordinator.waited_s)

    def put_off(self, untold: Untold, began: Moment) -> None:
        """Keeps what is to be told later. ``began``: when the batch did, unheard."""
        self.keep(untold, began)
        self.go_on()

    def keep(self, untold: Untold, began: Moment) -> None:
        """The same for what is about to be told by :meth:`tell`."""
        with self._lock:
            self._backlog.write(untold)
            self._all_told = False
            if self._unheard_since is None:
                self._unheard_since = max(began, self._heard)

    def tell(self, patience: Patience) -> bool:
        """Tells all that is untold, unless the thread is at it; returns whether nothing is left.

        :raises CoordinatorUnavailable, Refused: when it cannot be told.
        """
        with self._lock:
            if self._all_told:
                return True
            if self._thread is not None:
                return False
        self._tell_all(patience)
        return self._done()

    def tell_before(self, batch_id: int, patience: Patience) -> bool:
        """The same for a batch that is about to begin. Where that fails, the thread goes on."""
        if not self._all_told and self._thread is None:
            self._backlog.forget(batch_id)  # what a replay does again, it tells anew
        try:
            return self.tell(patience)
        except CoordinatorUnavailable:
            self.go_on()
            raise

    def go_on(self) -> None:
        """Lets the thread tell what is untold, if there may be such, and telling in the background is wanted."""
        with self._lock:
            if self._in_background and not self._all_told and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate-teller", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """The query has ended; what is still untold is told by its next start."""
        self._stopped.set()

    def _tell_all(self, patience: Patience, ended: Callable[[], bool] = lambda: False) -> None:
        for batch_id in self._backlog.batches():
            if ended():
                return
            untold = self._backlog.read(batch_id)
            if untold is None:
                continue
            since = self._unheard_since
            if since is None:  # an earlier run has left it
                since = self._unheard_since = Moment(untold.began_s, self._coordinator.waited_s)
            unheard_s = max(0.0, self._coordinator.clock.time() - since.at_s)
            self._coordinator.waited_s = max(self._coordinator.waited_s, since.waited_s + unheard_s)
            self._tell(untold, since, patience)
            self._backlog.forget(batch_id)
            self._log.info("the coordinator was told of this batch", extra={"batch": batch_id})

    def _has_ended(self) -> bool:
        """Return whether the query has ended: a begin from this run could fence the one that replaced it."""
        return self._stopped.is_set() or self._coordinator.stopped()

    def _done(self) -> bool:
        """Whether nothing is left; if so, the thread is dismissed."""
        with self._lock:
            if self._backlog.batches():
                return False
            self._all_told, self._unheard_since, self._thread = True, None, None
            self._heard = self.now()
            return True

    def _run(self) -> None:
        complained = False
        try:
            while not self._stopped.wait(random.uniform(PAUSE_S / 2, PAUSE_S)):
                try:
                    self._tell_all(ONE_ATTEMPT, self._has_ended)
                    if self._has_ended():
                        return
                    if self._done():
                        return
                except CoordinatorUnavailable:
                    continue
                except TidegateError as error:
                    self._log.error("the coordinator refused what it was told late: %s", error)
                    return
                except OSError:  # of the checkpoint's file system: it may be gone the next time
                    if not complained:
                        self._log.exception("what is untold could not be told; trying again")
                    complained = True
        finally:
            # Whatever has ended it: the next begin tells the rest itself, and runs into the same.
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
