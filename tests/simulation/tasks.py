"""The threads of a driver, which run the procedures of the client effect by effect."""

from collections.abc import Callable
from typing import Any, Protocol

from tidegate_spark.protocol.effects import Effect, Locked, Procedure

Ended = Callable[[Any, BaseException | None], None]
"""A function that receives the result of a procedure, or the error that ended it."""


class Lock:
    """The lock of a driver, which a task may acquire again while it holds it."""

    def __init__(self) -> None:
        self._holder: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []

    def acquire(self, task: "Task") -> bool:
        """Acquire the lock, or let the task wait for it. Return whether the task has the lock."""
        if self._holder not in (None, task):
            self._waiting.append(task)
            return False
        self._holder = task
        self._depth += 1
        return True

    def release(self) -> None:
        """Release the lock once, and continue a task that waits for it."""
        self._depth -= 1
        if not self._depth:
            self._holder = None
            if self._waiting:
                task = self._waiting.pop(0)
                self.acquire(task)
                task.advance()


WAITING = object()
"""The result of an effect that is not complete. The performer advances the task later."""


class Performer(Protocol):
    """A driver, which performs the effects of its tasks."""

    lock: Lock

    def perform(self, task: "Task", effect: Effect) -> Any:
        """Perform an effect, and return its result or ``WAITING``."""


class Task:
    """A thread of a driver.

    Args:
        driver: The driver.
        procedure: The procedure that the thread runs.
        ended: Receives the result or the error of the procedure.
    """

    def __init__(self, driver: Performer, procedure: Procedure[Any], ended: Ended) -> None:
        self._driver, self._ended = driver, ended
        self._stack = [procedure]

    def advance(self, value: Any = None, error: BaseException | None = None) -> None:
        """Continue after an effect, with its result or its error, up to the next effect."""
        stack = self._stack
        while stack:
            try:
                effect = stack[-1].send(value) if error is None else stack[-1].throw(error)
            except StopIteration as stop:
                value, error = stop.value, None
                self._leave()
            except Exception as raised:  # noqa: BLE001 - the procedure that waits for this one handles it
                value, error = None, raised
                self._leave()
            else:
                value, error = None, None
                if isinstance(effect, Locked):
                    stack.append(effect.procedure)
                    if not self._driver.lock.acquire(self):
                        return
                    continue
                try:
                    value = self._driver.perform(self, effect)
                except Exception as raised:  # noqa: BLE001 - the procedure handles it
                    error = raised
                if value is WAITING:
                    return
        self._ended(value, error)

    def _leave(self) -> None:
        self._stack.pop()
        if self._stack:
            self._driver.lock.release()
