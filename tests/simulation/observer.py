"""The observer of a simulation: it checks each guarantee against the answers of clients and the written rows.

The observer knows only requests, answers and rows. It never reads the state of the coordinator.
"""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.loop import Loop
from tests.simulation.source import LAG_MS, Row
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.effects import NoAnswer, Response, Send

BATCH = re.compile(r".*/queries/([^/]+)/batches/(\d+)(:commit)?")


class Violation(AssertionError):
    """A guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and the watermarks that clients had received when it was sent."""

    client: str
    request: Send
    losses: int
    watermark: int | None
    coalesced_watermark: int | None


class Observer:
    """The observer of one run.

    Args:
        loop: The virtual time.
        idle_timeout_ms: The idle timeout of the job; None if no limit lets the watermark pass a substream.
        keeps_history: Whether to keep every request and answer.

    Attributes:
        history: Requests, answers and faults in order, if they are kept.
        answers: Number of answers that were checked.
        unprotected: Number of batches that were open when the coordinator lost state, or that began after a loss below
            a watermark that clients had received. Nothing keeps W at or below their pinned watermarks.
        repairs: Number of stored pinned watermarks that an operator has removed.
        has_clock_steps: Whether clocks were stepped, so that silence cannot be measured.
    """

    def __init__(self, loop: Loop, idle_timeout_ms: int | None, keeps_history: bool) -> None:
        self._loop, self._idle_timeout_ms, self._keeps_history = loop, idle_timeout_ms, keeps_history
        self.history: list[str] = []
        self.answers = self.unprotected = self.repairs = 0
        self.has_clock_steps = False
        self._losses = 0
        self._watermark: int | None = None
        self._coalesced_watermark: int | None = None
        self._highest: int | None = None
        self._open: dict[tuple[str, int], int | None] = {}
        self._begun: dict[tuple[str, int], int] = {}
        self._committed: dict[str, int] = {}
        self._pins: dict[tuple[str, int], int | None] = {}
        self._excluded: set[tuple[str, str]] = set()
        self._max_event_times: dict[tuple[str, str], int] = {}
        self.written: dict[tuple[str, int], Mapping[str, Sequence[bool]]] = {}

    def note(self, text: str) -> None:
        """Add a line to the history."""
        if self._keeps_history:
            self.history.append(f"{self._loop.now_ms / 1000 - 1_700_000_000:9.3f} {text}")

    def lost(self, what: str) -> None:
        """Record that the coordinator has lost state: now only tokens and pinned watermarks restore W."""
        self.note(f"the coordinator has lost {what}")
        self._losses += 1
        self._watermark = self._coalesced_watermark = None
        self.unprotected += len(self._open)
        self._open.clear()

    def fingerprint(self) -> Hashable:
        """Return a value that observers share if they will judge the same future in the same way."""
        return (
            self._losses,
            self._watermark,
            self._coalesced_watermark,
            self._highest,
            *(tuple(sorted(each.items())) for each in (self._open, self._begun, self._committed, self._pins)),
        )

    def repaired(self, query: str, batch_id: int) -> None:
        """Record that an operator has removed the stored pinned watermark of a batch. State must have been lost."""
        if not self._losses:
            raise Violation(
                f"Replay-exact: the coordinator refuses the pinned watermark of batch {batch_id} of {query}"
            )
        self.note(f"an operator removes the pinned watermark of batch {batch_id} of {query}")
        self.repairs += 1
        self.written.pop((query, batch_id), None)

    # -- requests and answers -------------------------------------------------------------------------------------

    def sends(self, client: str, request: Send) -> Sent:
        """Record a request."""
        self.note(f"{client} sends {request.method} {request.path} {json.dumps(request.body)}")
        return Sent(client, request, self._losses, self._watermark, self._coalesced_watermark)

    def handled(self, request: Send, response: Response) -> None:
        """Record that the coordinator has applied a request: a commit, or a begin, which commits earlier batches."""
        found = BATCH.fullmatch(request.path)
        if found is None or response.status != 200:
            return
        query, batch_id = found[1], int(found[2]) if found[3] else int(found[2]) - 1
        if not found[3]:
            self._begun[query, int(found[2])] = self._losses
        self._committed[query] = max(batch_id, self._committed.get(query, -1))
        for key in [key for key in self._open if key[0] == query and key[1] <= batch_id]:
            del self._open[key]

    def receives(self, sent: Sent, outcome: Response | NoAnswer) -> None:
        """Check an answer that a client has received."""
        if isinstance(outcome, NoAnswer):
            self.note(f"{sent.client} gets no answer: {outcome}")
            return
        self.note(f"{sent.client} receives {outcome.status} {outcome.body.decode()}")
        answer = json.loads(outcome.body)
        if outcome.status == 200 and "watermark" in answer:
            self.answers += 1
            self._check_answer(sent, answer)

    def _check_answer(self, sent: Sent, answer: Mapping[str, Any]) -> None:
        watermark, coalesced = answer["watermark"], answer["coalesced_watermark"]
        if _below(coalesced, watermark):
            raise Violation(f"Monotone: C {coalesced} is below W {watermark}")
        claimed = _claim(sent.request)
        if _below(watermark, claimed):
            raise Violation(f"Monotone: {sent.client} sent a token for {claimed} and received {watermark}")
        if sent.losses == self._losses:
            if _below(watermark, sent.watermark) or _below(coalesced, sent.coalesced_watermark):
                raise Violation(f"Monotone: {sent.client} received {watermark} after {sent.watermark}")
            self._watermark = _highest(watermark, self._watermark)
            self._coalesced_watermark = _highest(coalesced, self._coalesced_watermark)
        self._highest = _highest(watermark, self._highest)
        for (query, batch_id), pinned in self._open.items():
            if _below(pinned, watermark):
                raise Violation(
                    f"Committed: {sent.client} received {watermark}, and batch {batch_id} of {query} with the pinned "
                    f"watermark {pinned} is open"
                )

    # -- batches --------------------------------------------------------------------------------------------------

    def classified(
        self,
        query: str,
        client: str,
        opened: OpenBatch,
        rows: Mapping[str, Sequence[Row]],
        late: Mapping[str, Sequence[bool]],
    ) -> None:
        """Check the rows of a batch that a driver has classified and written."""
        key, pinned = (query, opened.batch_id), opened.stored.pinned_watermark
        self.note(f"{client} classifies batch {opened.batch_id} by {pinned}: {sum(map(sum, late.values()))} late")
        if key not in self.written:
            self._pins[key], self.written[key] = pinned, late
            for name, of_substream in rows.items():
                self._check_substream((query, name), opened, of_substream)
        elif self._pins[key] != pinned or self.written[key] != late:
            raise Violation(f"Replay-exact: batch {opened.batch_id} of {query} has {pinned} after {self._pins[key]}")
        if not opened.acknowledged or opened.batch_id <= self._committed.get(query, -1):
            return  # the batch is in the backlog, or its rows were committed before
        if _below(pinned, self._highest) or self._begun.get(key) != self._losses:
            self.unprotected += 1
        else:
            self._open[key] = pinned

    def _check_substream(self, key: tuple[str, str], opened: OpenBatch, rows: Sequence[Row]) -> None:
        """Check that no row in order is late, unless its substream was silent and has not caught up since.

        A substream has caught up if its watermark, by the rows that were reported, has reached W. If the begin of a
        batch was acknowledged, the rows of all earlier batches were reported.
        """
        where, pinned = f"{key[1]} of {key[0]}, batch {opened.batch_id}", opened.stored.pinned_watermark
        if self._idle_timeout_ms is not None and any(row.silent_ms >= self._idle_timeout_ms for row in rows):
            self._excluded.add(key)
        elif opened.acknowledged and _reaches(self._max_event_times.get(key), _highest(pinned, self._highest)):
            self._excluded.discard(key)
        is_excluded = key in self._excluded or (self._idle_timeout_ms is not None and self.has_clock_steps)
        if pinned is not None and not is_excluded and any(r.is_in_order and r.event_time < pinned for r in rows):
            guarantee = "Safe" if self._idle_timeout_ms is None else "Evidence-based idleness"
            raise Violation(f"{guarantee}: a row in order is late: {where}")
        highest = max(row.event_time for row in rows)
        self._max_event_times[key] = max(highest, self._max_event_times.get(key, highest))


def _reaches(max_event_time: int | None, watermark: int | None) -> bool:
    return watermark is None or (max_event_time is not None and max_event_time - LAG_MS >= watermark)


def _below(value: int | None, other: int | None) -> bool:
    return other is not None and (value is None or value < other)


def _highest(value: int | None, other: int | None) -> int | None:
    return value if other is None or (value is not None and value > other) else other


def _claim(request: Send) -> int | None:
    token = None if request.body is None else request.body.get("watermark_token")
    value = "None" if token is None else token.partition(".")[2]
    return None if value == "None" else int(value)
