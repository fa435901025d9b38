"""The observer of a simulation: it checks each guarantee against the answers of clients and the written rows.

The observer knows only requests, answers, rows and the actions of operators. It never reads the state of the
coordinator.
"""

import json
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from tests.simulation.exclusions import Evictions, Exclusions, Key, Promise, slowest
from tests.simulation.frames import Frames
from tests.simulation.knowledge import BatchesOf, Declaration, HeldBelow, Sent, Violation, below, claim, highest, number
from tests.simulation.loop import Loop
from tests.simulation.reports import Reports
from tests.simulation.source import Row
from tests.simulation.written import Written
from tidegate_spark.protocol.batches import SUPERSEDED_BATCH, OpenBatch
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.registration import NEW_PARTITIONS

BATCH = re.compile(r".*/queries/([^/]+)/batches/(\d+)(:commit)?")
FENCED_RUNS_KEPT = 100
"""Number of replaced runs that the coordinator remembers for each query."""


class Observer:
    """The observer of one run.

    Args:
        loop: The virtual time.
        document: The first configuration of the job.
        keeps_history: Whether to keep every request and answer.
        substreams: The substreams by query.
        undeclared: The substreams that the programs do not declare.

    Attributes:
        history: Requests, answers and faults in order, if they are kept.
        answers: Number of answers that were checked.
        unprotected: Number of batches that were open when the coordinator lost state, or that began after a loss below
            a watermark that clients had received. Nothing keeps W at or below their pinned watermarks.
        repairs: Number of stored pinned watermarks that an operator has removed.
        has_clock_steps: Whether clocks were stepped, so that silence cannot be measured.
        promise: What the configurations promise together.
        evictions: The evicted substreams that must not return.
    """

    def __init__(
        self,
        loop: Loop,
        document: Mapping[str, Any],
        keeps_history: bool,
        substreams: Mapping[str, Iterable[str]],
        undeclared: Collection[Key] = (),
    ) -> None:
        self._loop, self._keeps_history = loop, keeps_history
        self.history: list[str] = []
        self.answers = self.unprotected = self.repairs = 0
        self.has_clock_steps = self._is_configured = False
        self._losses = 0
        self._watermark: int | None = None
        self._coalesced_watermark: int | None = None
        self._written_watermark: int | None = None
        self._windows: dict[str, int | None] = {}
        self._retired: set[str] = set()
        self._highest: int | None = None
        self._hold: HeldBelow | None = None
        self._open: dict[tuple[str, int], int | None] = {}
        self._queries = {query: BatchesOf() for query in substreams}
        self._substreams = [(query, name) for query, names in substreams.items() for name in names]
        self.promise = Promise.of(document)
        self._exclusions = Exclusions(self.promise)
        self._exclusions.exclude(undeclared)
        self._reports = Reports(self.promise, self._substreams)
        self.evictions = Evictions()
        self._declarations: list[Declaration] = []
        self._committing: set[str] = set()
        self._declaring: set[str] = set()
        self.written, self._frames = Written(), Frames()

    def note(self, text: str) -> None:
        """Add a line to the history."""
        if self._keeps_history:
            self.history.append(f"{self._loop.now_ms / 1000 - 1_700_000_000:9.3f} {text}")

    def fingerprint(self) -> Hashable:
        """Return a value that observers share if they will judge the same future in the same way.

        The value is for cases without operators, in which each query has one driver at a time.
        """
        queries = tuple((of.committed, tuple(sorted(of.begun.items()))) for of in self._queries.values())
        return (
            self._losses,
            self._watermark,
            self._coalesced_watermark,
            self._written_watermark,
            self._highest,
            queries,
            tuple(sorted(self._open.items())),
            self.written.fingerprint(),
        )

    @property
    def is_exact(self) -> bool:
        """Whether W is exactly at the lag behind the slowest substream: nothing has let W pass a substream."""
        return self._counts_all and self.promise.is_without_limits

    @property
    def _counts_all(self) -> bool:
        """Whether all substreams have always counted, under one configuration."""
        return not (self._exclusions.has_any or self._is_configured)

    def reached(self, max_event_times: Sequence[int | None]) -> int | None:
        """Return the max event time that W has reached, given those for which it waits; None if it waits for rows."""
        knows_median = self._counts_all and self.promise.idle_timeout_ms is None
        return slowest(max_event_times, self.promise.max_skew_ms if knows_median else None)

    def waited_for(self, max_event_times: Mapping[Key, int | None]) -> Sequence[int | None] | None:
        """Return the max event times of the substreams for which W waits; None if the observer does not know them.

        W waits for no substream that was evicted and must not return. A substream that was evicted with the query or
        the job, and has no rows since, may be declared again without a watermark.
        """
        unknown = self._exclusions.without_rows - self.evictions.watched
        if unknown or any(of.is_overtaken for of in self._queries.values()):
            return None
        counting = max_event_times.keys() - self.evictions.watched
        return [self._exclusions.known(key, max_event_times[key]) for key in counting]

    # -- faults and operators -------------------------------------------------------------------------------------

    def lost(self, what: str, is_tail: bool = False) -> None:
        """Record that the coordinator has lost state: now only tokens and pinned watermarks restore W.

        Args:
            what: What was lost.
            is_tail: Whether only the end of the log was lost, which may hide an earlier loss from a query.
        """
        restoring = [query for query, of in self._queries.items() if of.recovered_from != self._losses]
        if is_tail:
            self._reports.forget(key for key in self._substreams if key[0] in restoring)
        self.note(f"the coordinator has lost {what}")
        self._losses += 1
        self._watermark = self._coalesced_watermark = self._written_watermark = self._hold = None
        self.unprotected += len(self._open)
        self._open.clear()
        self._exclusions.lose()
        self.evictions.lose()
        self._frames.lose()
        for of in self._queries.values():
            of.run, of.may_restore = "", True
            of.fenced.clear()

    def repaired(self, query: str, batch_id: int) -> None:
        """Record that an operator has removed the stored pinned watermark of a batch. State must have been lost."""
        if not self._losses:
            raise Violation(
                f"Replay-exact: the coordinator refuses the pinned watermark of batch {batch_id} of {query}"
            )
        self.note(f"an operator removes the pinned watermark of batch {batch_id} of {query}")
        self.repairs += 1
        self.written.late.pop((query, batch_id), None)

    def reset(self) -> None:
        """Record that an operator has reset the job. W may then begin lower, and only declared substreams count."""
        self.lost("everything by a reset")
        self._exclusions.exclude(self._substreams)
        self._reports.forget(self._substreams)

    def excluded(self, key: Key, is_evicted: bool) -> None:
        """Record that an operator has evicted a substream, or declared it idle."""
        self.note(f"an operator {'evicts' if is_evicted else 'declares idle'} {key[1]} of {key[0]}")
        self._exclusions.exclude([key])
        of = self._queries[key[0]]
        if is_evicted:
            self._reports.forget([key])
        # If an older run works, the coordinator has lost that a newer one has replaced it. The newer one may still
        # write its progress from before the loss, from which the next run reports all max event times again.
        is_newest = number(of.run) >= number(of.newest_run)
        if is_evicted and is_newest and not of.may_restore and of.rows_until.get(key[1], -1) <= of.committed:
            self.evictions.evict(key)

    def retired(self, query: str, is_evicted: bool) -> None:
        """Record that an operator has retired a query, and evicted its substreams unless it is its own successor."""
        self._retired.add(query)
        self.note(f"an operator retires {query}{' and evicts its substreams' if is_evicted else ''}")
        for key in [key for key in self._open if key[0] == query]:
            del self._open[key]
        of, own = self._queries[query], [key for key in self._substreams if key[0] == query]
        if is_evicted:
            self._exclusions.exclude(own)
        # The retirement removes the evidence by which a query recognizes a loss that it has not yet recognized. The
        # query then does not report its max event times again.
        if is_evicted or of.recovered_from != self._losses:
            self._reports.forget(own)
        of.recovered_from = -1
        of.begun.clear()

    def configured(self, document: Mapping[str, Any]) -> None:
        """Record that an operator has changed the configuration."""
        self.note(f"an operator changes the configuration to {json.dumps(document)}")
        self.promise.add(document)
        self._is_configured = True

    def holds(self, at_most: int, coalesced_watermark: int | None, duration_ms: int | None) -> None:
        """Record that an operator holds C at or below a value, or where C is if C is above the value."""
        self.note(f"an operator holds the watermark at {at_most} for {duration_ms} ms")
        expires_ms = None if duration_ms is None else self._loop.now_ms + duration_ms
        reached = highest(coalesced_watermark, self._highest)
        self._hold = HeldBelow(at_most if reached is None else max(at_most, reached), expires_ms)

    def releases(self) -> None:
        """Record that an operator releases the hold."""
        self.note("an operator releases the hold")
        self._hold = None

    def reads(self, max_event_times: Mapping[Key, int | None]) -> None:
        """Check the substreams of the job and their max event times, which an operator has read.

        No substream returns after its eviction without a report, and no declaration and no committed max event time is
        lost.
        """
        returned = self.evictions.returned(max_event_times)
        if returned is not None:
            raise Violation(f"Evicted: {returned[1]} of {returned[0]} is back, and has not reported since")
        for query, name in self._exclusions.always_counting(self._substreams):
            of = self._queries[query]
            has_declared = of.committed >= 0 and of.recovered_from == self._losses
            if has_declared and (query, name) not in max_event_times:
                raise Violation(f"Safe: {name} of {query} was declared, and the job does not have it")
        for key, max_event_time in max_event_times.items():
            is_recovered = self._queries[key[0]].recovered_from == self._losses
            if is_recovered and self._reports.is_lost(key, max_event_time):
                raise Violation(f"Committed: {key[1]} of {key[0]} is at {max_event_time}, below its committed rows")

    # -- requests and answers -------------------------------------------------------------------------------------

    def sends(self, client: str, request: Send) -> Sent:
        """Record a request."""
        self.note(f"{client} sends {request.method} {request.path} {json.dumps(request.body)}")
        query = client.partition("-")[0]
        if query in self._queries and number(client) > number(self._queries[query].newest_run):
            self._queries[query].newest_run = client
        if request.path.endswith(":declare"):
            # A run declares the partitions of its topic once it knows them.
            is_first = (request.body or {})["reason"] == NEW_PARTITIONS and client not in self._declaring
            at_start = is_first or client not in self._committing
            self._declaring.update([client] if is_first else [])
            self._declarations.append(Declaration(request, at_start, self.evictions.count))
        watermarks = self._watermark, self._coalesced_watermark, self._written_watermark
        return Sent(client, request, self._losses, *watermarks, self._hold)

    def handled(self, request: Send, response: Response) -> None:
        """Record that the coordinator has handled a request: a commit, a begin, a declaration, or a report."""
        found = BATCH.fullmatch(request.path)
        if response.status != 200:
            self._refused(request, response)
            return
        self._check_fencing(request)
        if found is not None:
            self._applied(found, request, response)
        elif request.path.endswith(":declare"):
            sent = next(each for each in self._declarations if each.request is request)
            assert request.body is not None
            keys = [(request.body["query"], name) for name in request.body["substreams"]]
            # Max event times show that the run has recognized a loss.
            is_expected = sent.at_start or "max_event_times" in request.body
            self.evictions.declares(keys, is_expected, sent.evictions)

    def _refused(self, request: Send, response: Response) -> None:
        """Record a refusal: if a batch was overtaken, its query reports all max event times with the next batch."""
        if json.loads(response.body)["code"] in SUPERSEDED_BATCH:
            found = BATCH.fullmatch(request.path)
            assert request.body is not None
            query = request.body["batch"]["query"] if found is None else found[1]
            self.evictions.restores(query)
            of = self._queries[query]
            of.may_restore, of.is_overtaken, of.answered = True, True, (-1, 0)

    def _applied(self, found: re.Match[str], request: Send, response: Response) -> None:
        """Record a commit, or a begin, which commits earlier batches."""
        query, batch_id = found[1], int(found[2])
        of = self._queries[query]
        if found[3]:
            assert request.body is not None
            self._committing.add(request.body["run_id"])
        else:
            answer = json.loads(response.body)
            self._check_begin(query, batch_id, answer)
            if query in self._retired:  # until now, the written watermark did not wait for it
                self._retired.remove(query)
                self.wrote(query, answer["written_watermark"])
        closed = batch_id if found[3] else batch_id - 1
        of.committed = max(closed, of.committed)
        self._reports.commit(query, closed, self._loop.now_ms)
        for key in [key for key in self._open if key[0] == query and key[1] <= closed]:
            del self._open[key]

    def _check_begin(self, query: str, batch_id: int, answer: Mapping[str, Any]) -> None:
        """Check that each begin of a batch gets the same pinned watermark."""
        begun, pinned = self._queries[query].begun, answer["pinned_watermark"]
        losses, _, before = begun.get(batch_id, (None, None, None))
        if losses != self._losses:
            begun[batch_id] = self._losses, answer["watermark"], pinned
        elif pinned != before:
            raise Violation(f"Replay-exact: batch {batch_id} of {query} gets {pinned} after {before}")

    def _check_fencing(self, request: Send) -> None:
        """Check that the coordinator accepts no call of a run that a newer run has replaced."""
        body = request.body or {}
        caller = body.get("batch", body)
        if "run_id" not in caller:
            return
        run: str = caller["run_id"]
        of = self._queries[run.partition("-")[0]]
        if run in of.fenced:
            raise Violation(f"Idempotent: {run} was replaced by {of.run}, and {request.path} was accepted")
        if run != of.run and "batch" not in body and not request.path.endswith(":commit"):
            if of.run:
                of.fenced = [*of.fenced, of.run][-FENCED_RUNS_KEPT:]
            of.run = run
            if run in of.known_runs:
                # An older run that the coordinator could not fence after a loss reports its max event times again.
                self.evictions.restores(run.partition("-")[0])
            of.known_runs.add(run)
            if number(run) < number(of.newest_run):
                # This older run has not read the progress of the newer one.
                query = run.partition("-")[0]
                self._reports.forget(key for key in self._substreams if key[0] == query)

    def receives(self, sent: Sent, outcome: Response | NoAnswer) -> None:
        """Check an answer that a client has received."""
        if isinstance(outcome, NoAnswer):
            self.note(f"{sent.client} gets no answer: {outcome}")
            return
        self.note(f"{sent.client} receives {outcome.status} {outcome.body.decode()}")
        answer = json.loads(outcome.body)
        if outcome.status == 200 and "watermark" in answer:
            self.answers += 1
            self._follow_incarnation(sent.client.partition("-")[0], answer["incarnation"])
            self._check_answer(sent, answer)
            self._check_recovery(sent, answer)
            self._frames.read(answer.get("frames", ()), answer["written_watermark"], sent.losses == self._losses)

    def _follow_incarnation(self, query: str, incarnation: int) -> None:
        """Expect no earlier reports of a query that receives a higher incarnation than before.

        The store may lose a reset with all its data. Until the token of another query restores the incarnation, a query
        works in the earlier one, and then takes the restored incarnation for a reset.
        """
        of = self._queries.get(query)
        if of is None:
            return  # a consumer
        if of.incarnation is not None and incarnation > of.incarnation:
            self._reports.forget(key for key in self._substreams if key[0] == query)
        of.incarnation = max(incarnation, of.incarnation or 0)

    def _check_recovery(self, sent: Sent, answer: Mapping[str, Any]) -> None:
        """Record whether the query knows by this answer that it has recovered from all losses."""
        body = sent.request.body or {}
        if sent.losses != self._losses or "run_id" not in body:
            return
        of, found = self._queries[sent.client.partition("-")[0]], BATCH.fullmatch(sent.request.path)
        if found is None:
            # A run that repeats a batch has recovered what it knew before that batch. The rows of the batch follow.
            if answer["applied"] and body["after_batch"] is not None and body["after_batch"] >= of.committed:
                of.recovered_from = self._losses
        elif not found[3]:
            # After the begin of a later batch, the reports of this batch have no effect.
            has_later = answer["previous_batch_id"] is not None and answer["previous_batch_id"] > int(found[2])
            of.answered = (-1, 0) if has_later else (int(found[2]), self._losses)
            if "pinned_watermark" not in body and self._is_committed(int(found[2]), answer):
                # The run has no pinned watermark of this batch, as on an older checkpoint. It reports everything again.
                self.evictions.restores(found[1])
                of.may_restore = True
        else:
            if of.answered == (int(found[2]), self._losses):
                of.recovered_from = self._losses
                # The query reports all max event times again until a commit of this report is confirmed.
                of.may_restore &= not answer["applied"]
                of.is_overtaken &= not answer["applied"]
            if of.newest_run == sent.client:  # a newer run may have read the progress before this commit
                self._reports.know(found[1], int(found[2]))

    @staticmethod
    def _is_committed(batch_id: int, answer: Mapping[str, Any]) -> bool:
        return bool(answer["previous_batch_id"] == batch_id and not answer["previous_open"])

    def _check_answer(self, sent: Sent, answer: Mapping[str, Any]) -> None:
        watermark, coalesced = answer["watermark"], answer["coalesced_watermark"]
        if below(coalesced, watermark):
            raise Violation(f"Monotone: C {coalesced} is below W {watermark}")
        self._check_written(sent, watermark, answer["written_watermark"])
        incarnation, claimed = claim(sent.request)
        if answer["incarnation"] < incarnation or (answer["incarnation"] == incarnation and below(watermark, claimed)):
            raise Violation(f"Monotone: {sent.client} sent a token for {claimed} and received {watermark}")
        self._highest = highest(watermark, self._highest)
        passed = [key for key, pinned in self._open.items() if below(pinned, watermark)]
        if sent.losses != self._losses:
            # The answer is from before a loss, so nothing kept W at or below the pinned watermarks of these batches.
            self.unprotected += len(passed)
            for key in passed:
                del self._open[key]
            self._hold = None
            return
        if below(watermark, sent.watermark) or below(coalesced, sent.coalesced_watermark):
            raise Violation(f"Monotone: {sent.client} received {watermark} after {sent.watermark}")
        self._watermark = highest(watermark, self._watermark)
        self._coalesced_watermark = highest(coalesced, self._coalesced_watermark)
        self._check_hold(sent, coalesced)
        self._check_reports(coalesced)
        for query, batch_id in passed:
            raise Violation(
                f"Committed: {sent.client} received {watermark}, and batch {batch_id} of {query} with the pinned "
                f"watermark {self._open[query, batch_id]} is open"
            )

    def _check_written(self, sent: Sent, watermark: int | None, written: int | None) -> None:
        """Check that all windows below a written watermark are in the tables, also after a loss of state."""
        if below(watermark, written):
            raise Violation(f"Written: the written watermark {written} is above W {watermark}")
        for query, closed in self._windows.items():
            if query not in self._retired and below(closed, written):
                raise Violation(f"Written: {sent.client} received {written}, and {query} has written up to {closed}")
        if sent.losses == self._losses:
            if below(written, sent.written_watermark):
                raise Violation(f"Monotone: {sent.client} received {written} after {sent.written_watermark}")
            self._written_watermark = highest(written, self._written_watermark)

    def wrote(self, query: str, closed: int | None) -> None:
        """Record that a query has written its windows up to the end ``closed``, if it has windows."""
        if query in self._windows:
            self._windows[query] = highest(closed, self._windows[query])

    def reached_by_windows(self, watermark: int | None) -> int | None:
        """Return the watermark, or the lowest end of the windows that a query has written."""
        reached = watermark
        for query, closed in self._windows.items():
            if query not in self._retired and below(closed, reached):
                reached = closed
        return reached

    def has_windows(self, query: str) -> None:
        """Expect the written watermark to wait for the windows of a query."""
        self._windows[query] = None

    def _check_hold(self, sent: Sent, coalesced_watermark: int | None) -> None:
        hold = sent.hold
        if hold is None or hold is not self._hold or self.has_clock_steps:
            return
        in_force = hold.expires_ms is None or self._loop.now_ms < hold.expires_ms
        if in_force and below(hold.at_most, coalesced_watermark):
            raise Violation(f"Safe: {sent.client} received C {coalesced_watermark}, and a hold is at {hold.at_most}")

    def _check_reports(self, coalesced_watermark: int | None) -> None:
        counting = self._exclusions.always_counting(self._substreams)
        allowed = self._reports.highest_watermark(counting, self._loop.now_ms)
        if not self.has_clock_steps and below(allowed, coalesced_watermark):
            raise Violation(f"Committed: C is {coalesced_watermark}, and the committed rows allow {allowed}")

    # -- batches --------------------------------------------------------------------------------------------------

    def classified(
        self,
        query: str,
        client: str,
        opened: OpenBatch,
        rows: Mapping[str, Sequence[Row]],
        late: Mapping[str, Sequence[bool]],
        is_finished: bool = False,
    ) -> None:
        """Check the rows of a batch that a driver has classified and written.

        Args:
            query: The query.
            client: The run.
            opened: The batch.
            rows: Its rows by substream.
            late: Whether each of the rows is late.
            is_finished: Whether a run has finished the batch before.
        """
        key, pinned = (query, opened.batch_id), opened.stored.pinned_watermark
        of = self._queries[query]
        self.note(f"{client} classifies batch {opened.batch_id} by {pinned}: {sum(map(sum, late.values()))} late")
        self.evictions.reports((query, name) for name in rows)
        of.rows_until |= {name: max(opened.batch_id, of.rows_until.get(name, -1)) for name in rows}
        has_lost_runs = self._losses > 0 and not is_finished
        if self.written.add(key, number(client), number(of.newest_run), opened, late, has_lost_runs):
            for name, of_substream in rows.items():
                self._reports.add((query, name), opened.batch_id, max(row.event_time for row in of_substream))
                self._check_substream((query, name), opened, of_substream)
        self._protect(key, opened)

    def _protect(self, key: tuple[str, int], opened: OpenBatch) -> None:
        """Expect W to stay at or below the pinned watermark of a batch, if the coordinator knows the batch."""
        of, pinned = self._queries[key[0]], opened.stored.pinned_watermark
        if not opened.acknowledged or opened.batch_id <= of.committed:
            return  # the batch is in the backlog, or its rows were committed before
        losses, watermark, _ = of.begun.get(opened.batch_id, (None, None, None))
        if losses != self._losses or below(pinned, highest(watermark, self._highest)):
            self.unprotected += 1
        else:
            self._open[key] = pinned

    def _check_substream(self, key: Key, opened: OpenBatch, rows: Sequence[Row]) -> None:
        """Check that no row in order is late, unless its substream may be excluded."""
        pinned = opened.stored.pinned_watermark
        watermark = highest(pinned, self._highest)
        is_allowed = self._exclusions.allows_late(key, rows, opened.acknowledged, watermark)
        has_timeout = self.promise.idle_timeout_ms is not None
        if pinned is None or is_allowed or (has_timeout and self.has_clock_steps):
            return
        late = [row for row in rows if self.promise.is_in_order(row) and row.event_time < pinned]
        if not all(self.promise.may_come_late(row, pinned) for row in late):
            guarantee = "Evidence-based idleness" if has_timeout else "Safe"
            raise Violation(f"{guarantee}: a row in order is late: {key[1]} of {key[0]}, batch {opened.batch_id}")
