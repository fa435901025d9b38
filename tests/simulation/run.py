"""One run of the simulation: everything in it is drawn from its seed."""

import logging
import random as shared_random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, cast

from tests.simulation.coordinator import FRAMES_READ, Coordinator
from tests.simulation.exclusions import Key
from tests.simulation.faults import Faults
from tests.simulation.frames import DECLARATION, FRAME_MS, check_counts, check_tables
from tests.simulation.knowledge import Violation, below
from tests.simulation.loop import START_MS, Loop
from tests.simulation.network import Network
from tests.simulation.observer import Observer
from tests.simulation.operators import IDLE_TIMEOUT_MS, THROTTLES, Operator
from tests.simulation.source import LAG_MS, Source
from tests.simulation.spark import Cluster, Query
from tests.simulation.topic import Reading
from tidegate.domain.config import FrameThrottle
from tidegate.domain.frames import frames_between
from tidegate.domain.values import PLACEHOLDER
from tidegate_spark import config as client_config
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.retry import OnOutage, RetryPolicy

LATEST_START_MS = 200_000
FAULTS_UNTIL_MS = 300_000
INPUT_UNTIL_MS = 360_000
SETTLED_MS = 1_200_000
"""Times at which the latest source starts, at which faults end, at which the input ends, and at which the queries must
have processed it."""

SWEEP_MS = 1_000
READ_MS = 10_000
LONGEST_AWAY_MS = 60_000
IDLE_AFTER_MS = 6_000
"""Time of three triggers, in which the client finds and sends the evidence that a partition is silent."""
LATEST_SECOND_LOSS_MS = 5_000
LONGEST_COORDINATOR_STEP_MS = 60_000
LONGEST_TRANSACTION_MS = 2 * IDLE_TIMEOUT_MS
MAX_SKEW_MS = 60_000
MAX_ARRIVAL_DELAY_MS = 90_000


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        seed: The seed.
        violation: The guarantee that did not hold; None if all held.
        faults: Numbers and kinds of the faults that occurred.
        steps: Number of steps.
        answers: Number of answers that were checked.
        batches: Number of batches that were written.
        unprotected: Number of batches outside the promise (see :class:`~tests.simulation.observer.Observer`).
        repairs: Number of repairs by an operator (see the observer).
        history: The requests, answers and faults, if they were kept.
    """

    seed: int
    violation: str | None
    faults: list[tuple[int, str]]
    steps: int
    answers: int
    batches: int
    unprotected: int
    repairs: int
    history: list[str]


class Simulation:
    """One run.

    Args:
        seed: The seed.
        only: Numbers of the faults that may occur; None for all faults.
        without: Kinds of faults that do not occur.
        keeps_history: Whether to keep the history.
    """

    def __init__(
        self,
        seed: int,
        only: Collection[int] | None = None,
        without: Collection[str] = (),
        keeps_history: bool = False,
    ) -> None:
        self._seed, self._random = seed, Random(seed)
        self._loop, self._reads = Loop(), 0
        self._faults = Faults(Random(f"faults of {seed}"), only, without)
        self._limits_skew = Random(f"skew of {seed}").random() < 0.2
        self._has_target = Random(f"arrivals of {seed}").random() < 0.2
        names = [f"q{number}" for number in range(self._random.choice((1, 2, 2, 3)))]
        readings = {name: Reading.drawn(self._random) if self._random.random() < 0.5 else None for name in names}
        document = self._document(names, has_topic=any(readings.values()))
        sources = {name: self._sources(name, readings[name]) for name in names}
        undeclared = [(name, each) for name in names for each in sources[name] if self._random.random() < 0.15]
        self._coordinator = Coordinator(self._loop, document)
        self._observer = Observer(self._loop, document, keeps_history, sources, undeclared)
        self._network = Network(self._loop, self._random, self._faults, self._coordinator, self._handled)
        config = cast("client_config.JobConfig", document)
        shared = self._loop, self._random, self._faults, self._network, self._observer, config
        self._cluster = Cluster(*shared, self._lose_state, self._lose_tail)
        self._queries = []
        for name in names:
            declared = [each for each in sources[name] if (name, each) not in undeclared]
            has_windows = Random(f"windows of {seed} {name}").random() < 0.5
            if has_windows:
                self._observer.has_windows(name)
            more = declared, self._on_outage(), readings[name], has_windows
            self._queries.append(Query(self._cluster, name, sources[name], *more))
        operator = Random(f"operator of {seed}")
        self._operator = Operator(operator, self._cluster, self._coordinator, self._queries)

    def _document(self, names: Sequence[str], has_topic: bool) -> Mapping[str, Any]:
        return {
            "policy": {"type": "limiting_lag", "lag_ms": LAG_MS},
            "throttle": THROTTLES[self._random.random() < 0.3],
            "idle_timeout_ms": IDLE_TIMEOUT_MS if self._random.random() < (0.7 if has_topic else 0.4) else None,
            "max_retention_ms": 96_000 if self._random.random() < 0.1 else None,
            "max_skew_ms": MAX_SKEW_MS if self._limits_skew else None,
            "expected_queries": names,
            "max_future_skew_ms": None,
            **({"frames": DECLARATION} if self._has_target or Random(f"frames of {self._seed}").random() < 0.6 else {}),
            **({"arrival_target": 0.9, "max_arrival_delay_ms": MAX_ARRIVAL_DELAY_MS} if self._has_target else {}),
        }

    def _sources(self, query: str, reading: Reading | None) -> Mapping[str, Source]:
        random = self._random
        silences_ms, can_end = random.choice((0, 4 * IDLE_TIMEOUT_MS)), random.random() < 0.3
        sources = {}
        transactions_ms = LONGEST_TRANSACTION_MS if reading is not None and reading.reads_committed else 0
        for number in range(random.choice((1, 2, 3))):
            name = f"s{number}" if reading is None else f"t/{number}"
            end_ms = START_MS + random.randrange(FAULTS_UNTIL_MS) if can_end and random.random() < 0.4 else None
            start_ms = START_MS + (random.randrange(LATEST_START_MS) if random.random() < 0.2 else 0)
            own = Random(f"{self._seed} {query} {name}")
            # A limit hides rows only if they arrive faster than it lets through.
            more = {} if reading is None or reading.limit is None else {"intervals_ms": (1_000, 2_000, 15_000)}
            is_fast = self._limits_skew and Random(f"clock of {self._seed} {query} {name}").random() < 0.2
            ahead_ms = 3 * MAX_SKEW_MS if is_fast else 0
            sources[name] = Source(own, start_ms, silences_ms, end_ms, transactions_ms, ahead_ms=ahead_ms, **more)
        return sources

    def _on_outage(self) -> OnOutage:
        continues = self._random.random() < 0.4
        return OnOutage(RetryPolicy(self._random.choice((0, 20, 600))), continues)

    # -- running --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the simulation, and return its outcome."""
        shared_random.seed(self._seed)  # the client's jitter
        violation = None
        with quiet():
            try:
                self._run()
            except Violation as error:
                violation = str(error)
        return Outcome(
            self._seed,
            violation,
            self._faults.happened,
            self._loop.steps,
            self._observer.answers,
            len(self._observer.written.late),
            self._observer.unprotected,
            self._observer.repairs,
            self._observer.history,
        )

    def _run(self) -> None:
        for query in self._queries:
            self._loop.after(self._random.randrange(20_000), query.start)
        self._sweep()
        self._read()
        self._check_idle()
        self._operator.work()
        self._loop.run_until(START_MS + FAULTS_UNTIL_MS)
        self._faults.enabled = False
        self._coordinator.is_away = False
        self._loop.run_until(START_MS + INPUT_UNTIL_MS)
        for query in self._queries:
            for source in query.sources.values():
                source.length_at(self._loop.now_ms)
                source.is_ended = True
        self._operator.read()
        self._operator.stop()
        for query in self._queries:
            query.replace_drivers()
        self._settle()
        self._check_end()

    def _settle(self) -> None:
        """Run until all queries are caught up, and the sweeps and reads that follow have ended."""
        while self._loop.now_ms < START_MS + SETTLED_MS:
            self._loop.run_until(self._loop.now_ms + 10_000)
            if all(query.is_caught_up() for query in self._queries):
                self._loop.run_until(self._loop.now_ms + 2 * READ_MS)
                return
        behind = [query for query in self._queries if not query.is_caught_up()]
        raise Violation(f"Live: {behind[0].name} has not processed its input; its last error: {behind[0].last_error}")

    def _sweep(self) -> None:
        if not self._coordinator.is_away:
            self._coordinator.sweep()
        self._loop.after(SWEEP_MS, self._sweep)

    def _read(self) -> None:
        """Read the watermark as a consumer does."""
        self._reads += 1
        of_frames = self._reads % 2 and "frames" in self._coordinator.document
        request = Send("GET", f"/v1/jobs/j/{'frames' if of_frames else 'watermark'}", None, {}, 5.0)
        sent = self._observer.sends("a consumer", request)

        def receive(outcome: Response | NoAnswer) -> None:
            self._observer.receives(sent, outcome)

        self._cluster.network.send(request, receive)
        self._loop.after(READ_MS, self._read)

    def _check_idle(self) -> None:
        """Check that no partition that is read to its end holds W for longer than the idle timeout and some triggers.

        The check ends with the first fault. The other partitions of a query may have a backlog.
        """
        job = self._coordinator.job
        if self._faults.happened or self._loop.now_ms > START_MS + INPUT_UNTIL_MS:
            return
        self._loop.after(READ_MS, self._check_idle)
        if job is None or job.config.idle_timeout_ms is None:
            return
        latest_ms = self._loop.now_ms - job.config.idle_timeout_ms - IDLE_AFTER_MS
        for query in self._queries:
            if query.reading is None or not query.reading.by_partition or not query.disk.finished:
                continue
            finished = [query.disk.offsets[batch_id] for batch_id in sorted(query.disk.finished)]
            for name, source in query.sources.items():
                end, row = source.length_at(self._loop.now_ms), job.substreams.get((query.name, name))
                read_ms = next((batch.at_ms for batch in finished if batch.ends[name] == end), latest_ms)
                if max(read_ms, source.arrived_ms) < latest_ms and row is not None and not row.idle:
                    raise Violation(f"Live: {name} of {query.name} has no unread rows, was silent, and is not idle")

    # -- the coordinator's faults -----------------------------------------------------------------------------------

    def _handled(self, request: Send, response: Response) -> None:
        self._observer.handled(request, response)
        faults, random, coordinator = self._faults, self._random, self._coordinator
        if faults.happens("coordinator away"):
            self._observer.note("the coordinator is away")
            coordinator.is_away = True
            self._loop.after(random.randrange(LONGEST_AWAY_MS), self._return)
        if faults.happens("tail lost"):
            self._lose_tail()
        if faults.happens("state lost"):
            self._lose_state()
        if faults.happens("clock of the coordinator stepped"):
            self._observer.has_clock_steps = True
            step_ms = random.randrange(-LONGEST_COORDINATOR_STEP_MS, LONGEST_COORDINATOR_STEP_MS)
            self._observer.note(f"the clock of the coordinator is stepped by {step_ms} ms")
            coordinator.clock.offset_ms = step_ms

    def _lose_tail(self) -> None:
        coordinator, random = self._coordinator, self._random
        if coordinator.job is None:
            return
        count = random.randrange(min(coordinator.length, random.choice((3, 12, 40, coordinator.length))) + 1)
        coordinator.lose_tail(count)
        self._observer.lost(f"{count} commands", is_tail=True)
        self._network.lose_answers(random.choice((0, 2_000, 20_000)))

    def _lose_state(self) -> None:
        self._coordinator.lose_all()
        self._observer.lost("everything")
        if self._faults.happens("state lost again"):
            self._loop.after(self._random.randrange(LATEST_SECOND_LOSS_MS), self._lose_state)

    def _return(self) -> None:
        self._coordinator.is_away = False

    # -- the end --------------------------------------------------------------------------------------------------

    def _check_end(self) -> None:
        self._operator.read()
        self._check_watermark()
        happened = {kind for _, kind in self._faults.happened}
        if not {"tail lost", "tail lost after a kill", "state lost", "second driver", "operator resets"} & happened:
            self._check_accounting()

    def _check_watermark(self) -> None:
        """Check that W is where the policy promises. W may be higher if a substream was ever excluded."""
        reached_by = self._observer.waited_for(self._highest_event_times())
        job = self._coordinator.job
        slowest = None if reached_by is None else self._observer.reached(reached_by)
        if slowest is None:
            return
        assert job is not None
        if self._observer.evictions.count and any(name == PLACEHOLDER for _, name in job.substreams):
            return  # an operator has evicted all substreams of an expected query, which holds W until it reports again
        lag_ms, throttle = self._coordinator.current_document["policy"]["lag_ms"], job.config.throttle
        promised = slowest - lag_ms
        if isinstance(throttle, FrameThrottle):
            promised -= promised % throttle.size_ms
        is_reached = job.watermark is not None and job.watermark >= promised
        if not is_reached or (self._observer.is_exact and job.watermark != promised):
            raise Violation(f"Live: the watermark is {job.watermark}, and the policy promises {promised}")
        reached = self._observer.reached_by_windows(job.watermark)
        if below(job.written_watermark, reached):
            raise Violation(
                f"Live: the written watermark is {job.written_watermark}, and all is written up to {reached}"
            )

    def _highest_event_times(self) -> Mapping[Key, int | None]:
        return {(query.name, name): source.highest for query in self._queries for name, source in query.sources.items()}

    def _check_accounting(self) -> None:
        written: Counter[bool] = Counter()
        for rows in self._observer.written.late.values():
            for late in rows.values():
                written.update(late)
        job = self._coordinator.job
        assert job is not None
        counted = {False: job.total.on_time, True: job.total.late}
        if any(counted[late] != written[late] for late in counted):
            raise Violation(f"Idempotent: {counted} rows are counted (by lateness), and {dict(written)} were written")
        if job.config.frames is not None:
            by_frame = Counter[int]()
            for query in self._queries:
                for batch_id in query.disk.finished:
                    for of_substream in query.rows(batch_id).values():
                        by_frame.update(row.event_time // FRAME_MS * FRAME_MS for row in of_substream)
            frames = [asdict(frame) for frame in frames_between(job, None, None, FRAMES_READ)]
            check_counts(frames, by_frame)
            check_tables(frames, {query.name: query.table for query in self._queries})


@contextmanager
def quiet() -> Iterator[None]:
    """Switch the log of the client off, which takes a third of the time."""
    log = logging.getLogger("tidegate")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def statistics(outcomes: Collection[Outcome]) -> Mapping[str, Any]:
    """Return the numbers of faults by kind, and the sums of the other numbers."""
    faults = Counter(kind for outcome in outcomes for _, kind in outcome.faults)
    names = ("steps", "answers", "batches", "unprotected", "repairs")
    return {"faults": dict(faults), **{name: sum(getattr(one, name) for one in outcomes) for name in names}}
