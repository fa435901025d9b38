"""What the observer of a simulation remembers of requests, holds and the batches of a query."""

from dataclasses import dataclass, field

from tidegate_spark.protocol.effects import Send


class Violation(AssertionError):
    """A guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class HeldBelow:
    """A hold of an operator: until it ends, C stays at or below a value."""

    at_most: int
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and what the observer knew when it was sent."""

    client: str
    request: Send
    losses: int
    watermark: int | None
    coalesced_watermark: int | None
    written_watermark: int | None
    hold: HeldBelow | None


@dataclass(frozen=True, slots=True)
class Declaration:
    """A request that declares substreams.

    Attributes:
        request: The request.
        at_start: Whether its run had not yet committed a batch.
        evictions: Number of evictions when it was sent.
    """

    request: Send
    at_start: bool
    evictions: int


@dataclass(slots=True)
class BatchesOf:
    """What the observer knows of the batches of a query.

    Attributes:
        committed: The latest committed batch; -1 if none.
        recovered_from: Number of losses that the query has recovered from: it has received the answers to the begin and
            the commit of a batch that it sent after them, or to a heartbeat that was applied.
        may_restore: Whether the query may report all its max event times again with its next batch.
        answered: The latest batch whose begin was answered, and the number of losses at that time.
        newest_run: The newest run that has sent a request.
        run: The run that has last begun a batch or sent a heartbeat, the runs that it has replaced, and all
            runs so far.
        begun: For each batch that began: the number of losses at that time, and the watermark and the pinned watermark
            in the first answer.
        rows_until: For each substream, the latest batch with its rows.
        incarnation: The highest incarnation in an answer that the query has received.
        is_overtaken: Whether another run has overtaken a backlog batch, whose max event times wait for the next batch.
    """

    committed: int = -1
    recovered_from: int = 0
    may_restore: bool = False
    answered: tuple[int, int] = (-1, 0)
    run: str = ""
    newest_run: str = ""
    fenced: list[str] = field(default_factory=list)
    known_runs: set[str] = field(default_factory=set)
    begun: dict[int, tuple[int, int | None, int | None]] = field(default_factory=dict)
    rows_until: dict[str, int] = field(default_factory=dict)
    incarnation: int | None = None
    is_overtaken: bool = False


def number(run: str) -> int:
    """Return the number of a run, which is at the end of its id."""
    return int(run.rpartition("-")[2] or 0)


def below(value: int | None, other: int | None) -> bool:
    """Return whether a watermark is below another one; None is below all."""
    return other is not None and (value is None or value < other)


def highest(value: int | None, other: int | None) -> int | None:
    """Return the higher one of two watermarks; None is below all."""
    return value if other is None or (value is not None and value > other) else other


def claim(request: Send) -> tuple[int, int | None]:
    """Return the incarnation and the watermark of the token in a request; zero and None without a token."""
    token = None if request.body is None else request.body.get("watermark_token")
    incarnation, _, value = "0.None".partition(".") if token is None else token.partition(".")
    return int(incarnation), None if value == "None" else int(value)
