"""Effects: the requests of a procedure to its runner.

A *procedure* is a generator. It yields effects, receives the result or the exception of each effect, and returns its
own result. A procedure performs no I/O: its *runner* does. A test can therefore run a procedure with its own runner.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")

Document = dict[str, Any]
"""A JSON object."""


class NoAnswer(Exception):
    """A request got no answer; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; ``retry_after`` is the value of the header ``Retry-After``."""

    status: int
    body: bytes
    retry_after: str | None = None


class Effect:
    """Base class of all effects."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Send an HTTP request to the coordinator once; ``path`` follows the coordinator's address.

    The result is a :class:`Response`. If no answer arrives within ``timeout_s``, the runner raises :class:`NoAnswer`.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None
    headers: Mapping[str, str] = field(repr=False)  # may have the key
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause(Effect):
    """Wait, unless the query was stopped. The result is whether the query was stopped."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Read(Effect):
    """Read a document beside the checkpoint. The result is None if the document does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class Write(Effect):
    """Write a document beside the checkpoint, completely or not at all."""

    name: str
    document: Document


@dataclass(frozen=True, slots=True)
class Remove(Effect):
    """Remove a document beside the checkpoint, if it exists."""

    name: str


@dataclass(frozen=True, slots=True)
class ListBatches(Effect):
    """List the batches that have a document of a kind. The result is a list of batch ids."""

    kind: str


@dataclass(frozen=True, slots=True)
class HasCheckpoint(Effect):
    """Check whether this process finds the checkpoint. The result is a bool."""


@dataclass(frozen=True, slots=True)
class ReadQueryId(Effect):
    """Read the query id in the checkpoint. The runner raises ``InvalidUsage`` if the checkpoint does not exist."""


@dataclass(frozen=True, slots=True)
class ReadPlannedMs(Effect):
    """Read the time at which Spark planned a batch: epoch milliseconds, or None if Spark's log lacks the batch."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class HasFinished(Effect):
    """Check whether Spark's log records a batch as finished. The result is a bool."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class StartFlusher(Effect):
    """Run ``Backlog.flush_again`` about every second, until it returns False."""


@dataclass(frozen=True, slots=True)
class Locked(Effect):
    """Run a procedure while no other thread runs a locked procedure. The result is the procedure's result."""

    procedure: "Generator[Effect, Any, Any]"


Procedure: TypeAlias = Generator[Effect, Any, Result]

_NO_LOCK = nullcontext()


def run(
    procedure: Procedure[Result], perform: Callable[[Effect], Any], turn: AbstractContextManager[Any] = _NO_LOCK
) -> Result:
    """Run a procedure to its end, and return its result.

    Args:
        procedure: The procedure.
        perform: Performs one effect and returns its result.
        turn: A context that is entered while the procedure runs, and left while an effect is performed. A lock makes
            the code between two effects atomic.
    """
    advance: Callable[[], Effect] = partial(next, procedure)
    while True:
        try:
            with turn:
                effect = advance()
        except StopIteration as stop:
            result: Result = stop.value
            return result
        try:
            advance = partial(procedure.send, perform(effect))
        except BaseException as error:  # noqa: BLE001 - the procedure handles it
            advance = partial(procedure.throw, error)
