"""Frames over random schedules of two queries, on both machines.

A frame that is marked complete too early, with wrong counts, or without what was left out, makes a consumer run on
missing rows. Each schedule is compared with a recount of the committed rows, and with the table of substreams.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from random import Random

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts, RowsOfHour
from tidegate.domain.config import FrameThrottle, JobConfig, NoThrottle
from tidegate.domain.frames import FrameRows, FrameStatus
from tidegate.domain.job import FrameOutput, Run, TableVersion
from tidegate.domain.policies import LimitingLag
from tidegate.domain.values import above

START = 1_000_000
LENGTH = 20
STEPS = 120
SUBSTREAMS = ("a", "b", "c")
CONFIGS = (
    JobConfig(LimitingLag(5), frames=Frames(LENGTH, correction_delay_ms=10), idle_timeout_ms=30),
    JobConfig(LimitingLag(5), frames=Frames(LENGTH, correction_delay_ms=0), query_timeout_ms=40, max_batch_hold_ms=30),
    JobConfig(
        LimitingLag(0),
        FrameThrottle(50),
        frames=Frames(LENGTH, offset_ms=3, correction_delay_ms=25),
        max_retention_ms=20,
        idle_timeout_ms=60,
    ),
    JobConfig(
        LimitingLag(5),
        NoThrottle(),
        frames=Frames(LENGTH, correction_delay_ms=5),
        expected_queries=("p", "q"),
        query_timeout_ms=90,
    ),
)


@dataclass
class OpenBatch:
    """A batch that a query has begun, with the rows that it has read: substream and event time."""

    run: Run
    batch_id: int
    pinned: int | None
    rows: list[tuple[str, int]]
    tells: bool


@dataclass
class Schedule:
    """A random schedule, with what it has committed."""

    driver: Driver
    random: Random
    config: JobConfig
    now: int = START
    event_time: int = START
    batch_ids: Counter[str] = field(default_factory=Counter)
    open: dict[str, OpenBatch] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    committed: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    forced: set[str] = field(default_factory=set)
    told: dict[tuple[int, int], tuple[FrameRows, list[FrameOutput]]] = field(default_factory=dict)
    versions: Counter[str] = field(default_factory=Counter)
    tellers: Counter[str] = field(default_factory=Counter)
    tables: dict[str, dict[str, str]] = field(default_factory=lambda: {"p": {}, "q": {}})
    outputs_at: dict[int, list[list[FrameOutput]]] = field(default_factory=lambda: defaultdict(list))
    states: Counter[str] = field(default_factory=Counter)
    read: dict[int, int] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    has_loss: bool = False

    def __post_init__(self) -> None:
        """Create the job on both sides."""
        self.twin = Twin(self.driver, self.config, self.now, None)

    def execute(self, command: str, *arguments: object, **named: object) -> object:
        """Execute a command on both sides, compare all tables, and check the frames."""
        twin = self.twin
        twin.now = self.now
        result = twin.both(
            lambda: getattr(twin.machine, command)(*arguments, now_ms=self.now, **named),
            command_of(twin.store, command)(twin.job, *arguments, now_ms=self.now, **named),
        )
        for record in twin.new_records:
            if record.kind == "idle":
                forced = record.details["limit"] == "query_timeout_ms"
                (self.forced.update if forced else self.forced.difference_update)(record.details["substreams"])
            elif record.kind == "active":
                self.forced.difference_update(record.details["substreams"])
        twin.compare_tables()
        self.outputs_at[self.now].append(
            [FrameOutput(query, *each) for query in ("p", "q") for each in sorted(self.tables[query].items())]
        )
        self.check()
        return result

    def tell(self, query: str) -> list[TableVersion]:
        """Return the versions of some tables of a query, which the next command tells."""
        if self.tellers[query] != self.runs[query]:  # another run starts without versions
            self.tellers[query] = self.runs[query]
            self.tables[query] = {}
        told = []
        for table in self.random.sample(("s", "t"), self.random.randint(0, 2)):
            self.versions[table] += 1
            told.append(TableVersion(table, str(2**62 + self.versions[table])))
        self.tables[query] |= {each.table: each.version for each in told}
        return told

    # -- what happens ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let time pass, and execute one random command."""
        self.now += self.random.choice((0, 1, 5, 12))
        self.event_time += self.random.choice((0, 3, 8))
        action = self.random.choices(
            (self.batch, self.late_batch, self.heartbeat, self.sweep, self.act, self.retire),
            (10, 2, 4, 3, 2, 1),
        )[0]
        action()

    def sweep(self) -> None:
        self.execute("sweep")

    def batch(self, behind: int = 0) -> None:
        """Begin the next batch of a query, or commit its open one."""
        query = self.random.choice(("p", "q"))
        if query in self.open:
            self.commit(self.open[query])
            return
        run = Run(query, "c", f"r{self.runs[query]}")
        tells = query == "q" and self.random.random() < 0.7
        written = self.twin.answers[-1].watermark if tells and self.random.random() < 0.8 else None
        before = {**self.tables[query]}
        options = BeginOptions(tells_output=tells, output_watermark=written, input_age_ms=0, outputs=self.tell(query))
        begun = self.execute("begin", run, self.batch_ids[query], options=options)
        if begun is None:
            self.tables[query] = before
            return
        names = self.random.sample(SUBSTREAMS, self.random.randint(0, len(SUBSTREAMS)))
        rows = [
            (name, max(self.event_time - self.random.randint(0, 8 + behind) - behind, 1))
            for name in names
            for _ in range(self.random.randint(1, 3))
        ]
        self.open[query] = OpenBatch(run, self.batch_ids[query], begun.pinned_watermark, rows, tells)  # type: ignore[attr-defined]
        if self.random.random() < 0.7:
            self.commit(self.open[query])

    def late_batch(self) -> None:
        self.batch(behind=70)

    def commit(self, batch: OpenBatch) -> None:
        """Report and commit a batch, in most cases with its counts."""
        del self.open[batch.run.query]
        self.batch_ids[batch.run.query] += 1
        highest = {name: max(time for of, time in batch.rows if of == name) for name, _ in batch.rows}
        rows = Counter(name for name, _ in batch.rows)
        self.execute("stage", batch.run, batch.batch_id, PartitionReport(0, highest, dict(rows)))
        if self.random.random() < 0.03:
            self.execute("commit", batch.run, batch.batch_id, None, outputs=self.tell(batch.run.query))
            return
        disposition = self.random.choice(("dropped", "diverted"))
        frames: list[RowsOfHour] = []
        counts = {name: Counter[str]() for name in rows}
        calendar = self.config.frames
        assert calendar is not None
        added: dict[int, Counter[str]] = defaultdict(Counter)
        for name, time in batch.rows:
            is_late = above(batch.pinned, time)
            row_class = "on_time" if not is_late else self.random.choice(("late", "updated"))
            counts[name][row_class] += 1
            frames.append((time, 1, int(row_class == "updated"), int(row_class == "late")))
            start = calendar.start_of(calendar.number_of(time))
            added[start][disposition if row_class == "late" else row_class] += 1
        of_each = tuple(RowCounts(of["on_time"], of["updated"], of["late"], 0, 0) for of in counts.values())
        account = BatchAccounting(tuple(counts), of_each, disposition, frames=tuple(frames))  # type: ignore[arg-type]
        for start, of_frame in added.items():
            self.committed[start].update(of_frame)
        self.execute("commit", batch.run, batch.batch_id, account, outputs=self.tell(batch.run.query))

    def heartbeat(self) -> None:
        query = self.random.choice(("p", "q"))
        if query in self.open or not self.batch_ids[query]:
            return
        run = Run(query, "c", f"r{self.runs[query]}")
        named: dict[str, object] = {"outputs": self.tell(query)}
        if query == "q":
            named |= {"tells_output": True, "output_watermark": self.twin.answers[-1].coalesced_watermark}
        self.execute("heartbeat", run, self.now, after_batch=self.batch_ids[query] - 1, **named)

    def act(self) -> None:
        """Act as an operator on a substream."""
        query, name = self.random.choice(("p", "q")), self.random.choice(SUBSTREAMS)
        action = self.random.choice(("idle", "done", "evict", "declare", "hold"))
        if action == "hold":
            if "h" in self.twin.machine.holds:
                self.execute("release", "h")
            else:
                self.execute("hold", "h", self.event_time - 10, duration_ms=None)
            return
        self.has_loss = self.has_loss or action == "evict"
        if action == "idle" and (query, name) in self.twin.machine.substreams:
            self.forced.add(f"{query}/{name}")
        self.execute(action, query, [name])

    def retire(self) -> None:
        query = self.random.choice(("p", "q"))
        if self.random.random() < 0.5 or query not in self.twin.machine.queries:
            return
        self.has_loss = True
        successor = self.random.choice((None, query))
        if successor is None or query in self.open:
            self.tables[query].clear()
        self.execute("retire", query, successor)
        if self.open.pop(query, None) is not None:
            pass  # the batch is abandoned: its rows are not committed
        self.runs[query] += 1

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check all frames against the recount, and the new ones against the table of substreams."""
        found = self.twin.driver(self.twin.store.reads.frames(self.twin.job, most=1000, now_ms=self.now))
        frames, state = found.frames, self.twin.answers[-1]
        assert [frame.start for frame in frames] == sorted((frame.start for frame in frames), reverse=True)
        for later, earlier in pairwise(frames):
            assert earlier.end == later.start, "frames follow each other"
        for frame in frames:
            self.check_counts(frame)
            if frame.read_ms is not None and frame.start not in self.read:
                self.read[frame.start] = frame.read_ms
                self.check_exclusions(frame)
            if frame.state != "open":
                assert not above(frame.end, state.watermark), "W has not passed a finished frame"
                assert not above(frame.end, state.written_watermark), "a finished frame is not written"
                self.check_generations(frame)
            self.states[frame.state] += 1

    def check_counts(self, frame: FrameStatus) -> None:
        counted = self.committed.get(frame.start, Counter[str]())
        assert astuple(frame.rows) == tuple(counted[name] for name in ("on_time", "updated", "dropped", "diverted"))
        if frame.state == "empty":
            assert not counted.total(), "an empty frame has rows"
            # Rows that no client has counted may be committed later.
            assert frame.start in self.empty or not frame.uncounted, "an empty frame may have rows"
            self.empty.add(frame.start)

    def check_exclusions(self, frame: FrameStatus) -> None:
        """Check that the exclusions of a frame that W has just passed are exactly what did not count."""
        table = self.twin.driver(self.twin.store.reads.substreams(self.twin.job, now_ms=self.now))
        expected, silent = set[str](), set[str]()
        for row in table.rows:
            name = f"{row.query}/{row.substream}"
            if row.state == "done" or (row.watermark is not None and row.watermark >= frame.end):
                continue
            (silent if row.state == "idle" and name not in self.forced else expected).add(name)
        removed = ("evict", "retire", "hand_over")
        named = {
            each.substream
            for exclusion in frame.exclusions
            if exclusion.reason not in removed
            for each in exclusion.substreams
        }
        assert named == expected, (frame, table.rows)
        assert {each.substream for each in (frame.silent.substreams if frame.silent else ())} == silent
        if not self.has_loss:
            assert all(exclusion.reason not in removed for exclusion in frame.exclusions)

    def check_generations(self, frame: FrameStatus) -> None:
        """Check that generations are numbered, add up to the rows of the frame, have its tables, and never change."""
        numbers = [each.generation for each in frame.generations]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert frame.generation == numbers[-1]
        sums = [0, 0, 0, 0]
        for rows in (*(each.rows for each in frame.generations), *([frame.changes] if frame.changes else ())):
            sums = [a + b for a, b in zip(sums, astuple(rows), strict=True)]
        assert tuple(sums) == astuple(frame.rows)
        for each in frame.generations:
            content = each.rows, each.outputs
            assert self.told.setdefault((frame.start, each.generation), content) == content
            if frame.state != "empty":  # an empty frame is finished before it is proven empty
                assert each.outputs in self.outputs_at[each.at_ms]
            assert each.reason == "" or sum(astuple(each.rows)), "a generation without a change"
        assert frame.outputs == frame.generations[-1].outputs


@pytest.mark.parametrize("config", CONFIGS, ids=["idle", "timeouts", "retention", "expected"])
@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(100, 140), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_frames_match_a_recount(make_driver: Callable[[], Driver], config: JobConfig, seeds: range) -> None:
    """Frames finish at the right step, with the right counts and exclusions. Each change is in one generation."""
    states = Counter[str]()
    generations = 0
    for seed in seeds:
        schedule = Schedule(make_driver(), Random(seed), config)  # noqa: S311 - not a secret
        try:
            for _ in range(STEPS):
                schedule.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            schedule.twin.close()
        states += schedule.states
        generations += sum(number > 1 for _, number in schedule.told)
    assert states["complete"] or states["complete_with_exclusions"]
    assert generations, "no schedule has corrected a frame"
