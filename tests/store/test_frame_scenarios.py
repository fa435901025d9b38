"""Situations in which a frame must stay open, or must have another generation, on both machines."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts
from tidegate.domain.config import JobConfig
from tidegate.domain.frames import CONFIRMED_MS, LOSSES_KEPT, RESTORED, FrameStatus
from tidegate.domain.job import FrameOutput, Run, TableVersion, TokenClaim
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import LimitingLag
from tidegate.store.keyspace import key_of

HUNDREDS = Frames(100, correction_delay_ms=0)


class Job:
    """A job on both machines, with frames of 100 ms."""

    def __init__(self, driver: Driver, **config: object) -> None:
        given = {"frames": HUNDREDS, "max_future_skew_ms": None} | config
        self.config = JobConfig(LimitingLag(0), **given)  # type: ignore[arg-type]
        self.now = 100_000
        self.twin = Twin(driver, self.config, self.now, None)
        self.batches: dict[str, int] = {}

    def execute(self, command: str, *arguments: object, **named: object) -> None:
        twin = self.twin
        twin.now = self.now
        twin.both(
            lambda: getattr(twin.machine, command)(*arguments, now_ms=self.now, **named),
            command_of(twin.store, command)(twin.job, *arguments, now_ms=self.now, **named),
        )
        twin.compare_tables()

    def begin(
        self, query: str, output: tuple[int | None] | None = None, tables: Mapping[str, int] | None = None
    ) -> Run:
        run = Run(query, "c", "r")
        options = BeginOptions() if output is None else BeginOptions(tells_output=True, output_watermark=output[0])
        options = replace(options, outputs=versions(tables))
        self.execute("begin", run, self.batches.get(query, 0), options=options)
        return run

    def batch(
        self,
        query: str = "p",
        *,
        updated: tuple[int, ...] = (),
        is_counted: bool = True,
        output: tuple[int | None] | None = None,
        offsets: BatchOffsets | None = None,
        tables: Mapping[str, int] | None = None,
        **times: int,
    ) -> None:
        """Begin, report and commit a batch with a row of each substream, and updated rows of the first one.

        The commit tells the versions of ``tables``.
        """
        run = self.begin(query, output)
        number = self.batches.get(query, 0)
        self.batches[query] = number + 1
        self.execute("stage", run, number, PartitionReport(0, times, dict.fromkeys(times, 1)))
        frames = tuple((at, 1, 0, 0) for at in times.values()) + tuple((at, 1, 1, 0) for at in updated)
        rows = [RowCounts(1, 0, 0, 0, 0) for _ in times]
        if updated:
            rows[0] = RowCounts(1, len(updated), 0, 0, 0)
        account = BatchAccounting(tuple(times), tuple(rows), frames=frames if is_counted else None)
        self.execute("commit", run, number, account, offsets=offsets, outputs=versions(tables))

    def heartbeat(
        self,
        query: str = "p",
        output: tuple[int | None] | None = None,
        tables: Mapping[str, int] | None = None,
        after: int | None = None,
    ) -> None:
        named = {} if output is None else {"tells_output": True, "output_watermark": output[0]}
        after = self.batches[query] - 1 if after is None else after
        outputs = versions(tables)
        self.execute("heartbeat", Run(query, "c", "r"), self.now, after_batch=after, outputs=outputs, **named)

    def reset(self) -> None:
        answer = self.twin.driver(self.twin.store.actions.reset(self.twin.job, now_ms=self.now))
        assert answer == self.twin.machine.reset(self.now, answer.state_epoch)
        self.twin.compare_records()
        self.batches.clear()

    def frame(self, time: int) -> FrameStatus:
        [frame] = self.twin.driver(self.twin.store.reads.frame(self.twin.job, time, self.now)).frames
        return frame

    def states(self, *times: int) -> list[str]:
        return [self.frame(time).state for time in times]


def versions(tables: Mapping[str, int] | None) -> list[TableVersion]:
    return [TableVersion(table, str(version)) for table, version in (tables or {}).items()]


Make = Callable[..., Job]


@pytest.fixture
def make(make_driver: Callable[[], Driver]) -> Iterator[Make]:
    made: list[Job] = []

    def job(**config: object) -> Job:
        made.append(Job(make_driver(), **config))
        return made[-1]

    yield job
    for each in made:
        each.twin.close()


def offsets(start: int, end: int) -> BatchOffsets:
    return BatchOffsets(["t/0"], [start], [end], [end], [None])


def test_lost_offsets_concern_all_frames_up_to_the_batch_that_skips_them(make: Make) -> None:
    job = make()
    job.batch(a=1000, offsets=offsets(0, 10))
    job.batch(a=1550, offsets=offsets(500, 510))
    assert job.states(1000, 1100, 1400) == ["complete_with_exclusions", "open", "open"]
    assert job.frame(1100).exclusions[0].reason == "offsets_skipped"


def test_a_frame_with_uncounted_rows_is_not_proven_empty(make: Make) -> None:
    job = make(query_timeout_ms=50)
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.now += 60
    job.batch(a=1250)
    assert job.states(1000, 1100) == ["complete_with_exclusions", "open"]
    job.batch("q", b=1150, is_counted=False)
    job.batch("q", b=1260)
    assert job.states(1100) == ["complete_with_exclusions"]
    assert job.frame(1100).uncounted


@pytest.mark.parametrize("action", ["evict", "retire"])
def test_removed_substreams_prove_nothing(make: Make, action: str) -> None:
    job = make()
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.execute("idle", "q", ["b"])
    job.batch(a=1250)
    assert job.states(1000, 1100) == ["complete_with_exclusions", "open"]
    if action == "evict":
        job.execute("evict", "q", ["b"])
    else:
        job.execute("retire", "q", None)
    job.batch(a=1360)
    assert job.states(1100, 1200) == ["open", "complete_with_exclusions"]


def test_the_end_of_the_input_proves_nothing_of_idle_substreams(make: Make) -> None:
    job = make()
    job.batch(a=1000, b=1000)
    job.execute("idle", "p", ["b"])
    job.batch(a=1250)
    job.execute("complete")
    assert job.states(1000, 1100, 1200) == ["complete_with_exclusions", "open", "complete_with_exclusions"]


def test_a_query_that_has_died_is_no_evidence_of_silence(make: Make) -> None:
    job = make(idle_timeout_ms=30)
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.now += 100
    job.heartbeat("q")
    job.batch(a=1250)
    assert job.states(1000, 1100) == ["complete", "empty"]
    assert job.frame(1100).silent is not None
    job.now += CONFIRMED_MS + 100
    job.batch(a=1450)
    assert job.states(1200, 1300) == ["complete_with_exclusions", "open"]
    assert [each.reason for each in job.frame(1300).exclusions] == ["silent_query"]


def test_rows_before_a_reset_are_not_counted(make: Make) -> None:
    job = make()
    job.batch(a=1150)
    job.reset()
    job.batch(a=1010)
    job.batch(a=1290)
    assert job.states(1000, 1100) == ["complete", "complete"]
    assert job.frame(1100).uncounted


def test_a_restored_watermark_starts_new_generations(make: Make) -> None:
    job = make()
    job.batch(a=1000)
    run = Run("p", "c", "r")
    job.execute("begin", run, 1, token=TokenClaim(job.twin.machine.incarnation, 1130))
    job.execute("commit", run, 1, None)
    frame = job.frame(1000)
    assert (frame.state, frame.generation) == ("complete_with_exclusions", RESTORED + 1)
    assert frame.uncounted
    assert frame.generations[0].reason == "watermark_restored"


def test_a_batch_that_began_before_the_declaration_is_not_counted(make: Make) -> None:
    job = make(frames=Frames(1000))
    job.batch(a=1000)
    run = job.begin("p")
    assert job.twin.change(JobConfig(LimitingLag(0), frames=HUNDREDS, max_future_skew_ms=None))
    job.execute("stage", run, 1, PartitionReport(0, {"a": 1350}, {"a": 1}))
    account = BatchAccounting(("a",), (RowCounts(1, 0, 0, 0, 0),), frames=((1000, 1, 0, 0),))
    job.execute("commit", run, 1, account)
    assert job.states(1100, 1200) == ["complete", "complete"]
    assert job.frame(1200).uncounted


def test_another_declaration_tells_the_changes_before(make: Make) -> None:
    job = make(frames=Frames(100, correction_delay_ms=50_000))
    job.batch(a=1000)
    job.batch(a=1150)
    job.batch(a=1151, updated=(1000,))
    assert job.frame(1000).changes is not None
    assert job.twin.change(JobConfig(LimitingLag(0), frames=Frames(50), max_future_skew_ms=None))
    told = [record.details for record in job.twin.machine.history if record.kind == "frame"]
    assert (told[-1]["start"], told[-1]["generation"], told[-1]["updated"]) == (1000, 2, 1)


def test_frames_between_the_two_watermarks_are_told_under_another_declaration(make: Make) -> None:
    job = make()
    job.batch(a=1000)
    job.batch("w", b=1000, output=(None,))
    job.batch(a=1250)
    job.batch("w", b=1250, output=(1000,))
    assert job.states(1000) == ["open"]
    assert job.twin.change(JobConfig(LimitingLag(0), frames=Frames(50), max_future_skew_ms=None))
    job.heartbeat("w", output=(1250,))
    assert job.states(1000, 1050, 1200) == ["complete"] * 3


def with_unwritten_update(make: Make) -> Job:
    """Query `w` has told its output, and then changes a window of a frame that another query holds back."""
    job = make()
    job.batch("v", a=1000, output=(None,))
    job.batch("w", b=1000, output=(None,))
    job.batch("v", a=1250, output=(1000,))
    job.batch("w", b=1250, output=(1000,))
    job.heartbeat("w", output=(1250,))
    job.batch("w", b=1251, updated=(1000,), output=(1250,))
    job.heartbeat("v", output=(1250,))
    assert job.states(1000) == ["open"]
    return job


def test_a_frame_is_not_told_before_its_updated_results_are_written(make: Make) -> None:
    job = with_unwritten_update(make)
    job.heartbeat("w", output=(1251,))
    frame = job.frame(1000)
    assert (frame.state, frame.generation, frame.rows.updated) == ("complete", 1, 1)


def test_a_correction_waits_only_for_the_query_that_has_made_it(make: Make) -> None:
    job = make()
    job.batch(a=1000)
    job.batch("w", b=1000, output=(None,))
    job.batch(a=1250)
    job.batch("w", b=1250, output=(1000,))
    job.heartbeat("w", output=(1250,))
    job.batch("w", b=1251, updated=(1100,), output=(1250,))
    job.batch(a=1252, updated=(1000,))
    assert job.frame(1000).generation == 2
    assert (job.frame(1100).generation, job.frame(1100).rows.updated) == (1, 1)
    job.heartbeat("w", output=(1251,))
    assert job.frame(1100).generation == 2


def test_frames_that_pass_together_have_their_own_exclusions(make: Make) -> None:
    """`b` has reached 1150, so it is excluded from the frames from 1100 on only."""
    job = make()
    job.batch(a=1000, b=1150)
    job.execute("idle", "p", ["b"])
    job.batch(a=1450)
    assert job.states(1000, 1100, 1200, 1300) == ["complete", "complete_with_exclusions", "open", "open"]
    told = [
        (record.details["start"], record.details["end"], record.details["state"])
        for record in job.twin.machine.history
        if record.kind == "frame"
    ]
    assert told == [(1000, 1100, "complete"), (1100, 1400, "complete_with_exclusions")]


def test_substreams_that_are_handed_over_are_no_exclusion(make: Make) -> None:
    job = make()
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.execute("retire", "q", "p")
    job.batch(a=1250, b=1250)
    assert job.states(1000, 1100) == ["complete", "empty"]


def test_a_year_of_frames_that_pass_together_has_one_record(make: Make) -> None:
    job = make()
    job.batch(a=1000)
    job.batch(a=1000 + 8760 * 100)
    assert len(job.twin.machine.frames.records) == 1
    [told] = [record.details for record in job.twin.machine.history if record.kind == "frame"]
    assert (told["count"], told["empty"]) == (8760, 8759)
    assert job.states(1000, 500_000) == ["complete", "empty"]


def test_a_restarted_query_proves_nothing_before_it_has_read(make: Make) -> None:
    """The begin of `q` is a call, but no evidence: its batch may have rows of the frames that W has passed."""
    job = make(idle_timeout_ms=30)
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.now += 100
    job.heartbeat("q")
    job.now += CONFIRMED_MS + 100
    job.batch(a=1350)
    assert job.states(1000, 1100, 1200) == ["complete_with_exclusions", "open", "open"]
    job.now += 1000
    job.begin("q")
    assert job.states(1100, 1200) == ["open", "open"]
    job.batch("q", b=1150)
    assert job.states(1100, 1200) == ["complete_with_exclusions", "open"]
    job.now += 1000
    job.heartbeat("q")
    assert job.states(1200) == ["empty"]


def test_evidence_of_some_substreams_confirms_no_others(make: Make) -> None:
    job = make(idle_timeout_ms=30)
    job.batch(a=1000)
    job.batch("q", b=1000, c=1000)
    job.now += 100
    job.heartbeat("q")
    job.now += CONFIRMED_MS + 100
    job.execute("heartbeat", Run("q", "c", "r"), job.now, after_batch=0, caught_up=["b"])
    job.batch(a=1250)
    assert job.states(1000, 1100) == ["complete_with_exclusions", "open"]
    job.execute("heartbeat", Run("q", "c", "r"), job.now, after_batch=0, caught_up=["b", "c", "c"])
    assert job.states(1100) == ["empty"]


def test_the_end_of_the_input_confirms_the_silence_of_stopped_queries(make: Make) -> None:
    job = make(idle_timeout_ms=30)
    job.batch(a=1000)
    job.batch("q", b=1000)
    job.now += 100
    job.heartbeat("q")
    job.batch(a=1250)
    job.now += CONFIRMED_MS + 100
    job.execute("complete")
    assert job.states(1000, 1100, 1200) == ["complete", "empty", "complete"]


def test_results_of_a_later_batch_without_rows_are_those_of_the_last_batch_too(make: Make) -> None:
    job = with_unwritten_update(make)
    job.batches["w"] += 1  # a batch without rows
    job.heartbeat("w", output=(1250,))
    assert job.states(1000, 1100) == ["complete", "empty"]


def test_rows_above_the_output_watermark_wait_for_that_only(make: Make) -> None:
    """The window of 1120 is open in `p`, so no results have changed that `p` would have to tell."""
    job = make()
    job.batch(a=1000, output=(None,))
    job.batch(a=1350, output=(900,))
    job.batch(a=1351, updated=(1120,), output=(900,))
    assert job.states(1000, 1100) == ["open", "open"]
    job.batches["p"] += 1
    job.heartbeat(output=(1350,))
    assert job.states(1000, 1100, 1200) == ["complete", "complete", "empty"]


def test_a_frame_that_was_read_before_a_restored_watermark_has_a_new_generation(make: Make) -> None:
    job = make()
    job.batch("w", a=1000, output=(None,))
    job.batch("w", a=1250, output=(1000,))
    assert job.states(1000) == ["open"]
    run = Run("w", "c", "r")
    job.execute(
        "begin",
        run,
        2,
        options=BeginOptions(tells_output=True, output_watermark=1000),
        token=TokenClaim(job.twin.machine.incarnation, 1330),
    )
    job.execute("commit", run, 2, None)
    job.batches["w"] = 3
    job.heartbeat("w", output=(1330,))
    frames = [job.frame(1000), job.frame(1200)]
    assert [each.generation for each in frames] == [RESTORED + 2] * 2
    assert [each.generations[0].reason for each in frames] == ["watermark_restored"] * 2


def test_many_losses_are_merged(make: Make) -> None:
    job = make()
    names = [f"s{number:03}" for number in range(LOSSES_KEPT + 50)]
    job.batch(a=1000)
    job.batch("q", **dict.fromkeys(names, 900))  # type: ignore[arg-type]
    for name in names:
        job.execute("evict", "q", [name])
    job.batch(a=1250)
    frame = job.frame(1000)
    assert len(frame.exclusions) == LOSSES_KEPT
    assert sum(each.count for each in frame.exclusions) == len(names)


# -- the versions of tables ---------------------------------------------------------------------------------------


def outputs(job: Job, time: int) -> list[tuple[str, str, int]]:
    """Return the tables in the latest generation of a frame."""
    return [(each.query, each.table, int(each.version)) for each in job.frame(time).outputs]


def told(job: Job, query: str) -> dict[str, int]:
    """Return the versions of the tables of a query, as its status shows them."""
    rows = job.twin.driver(job.twin.store.reads.queries(job.twin.job, job.now)).rows
    return {each.table: int(each.version) for row in rows if row.query == query for each in row.outputs}


def test_a_frame_has_the_versions_that_the_commit_tells_that_finishes_it(make: Make) -> None:
    """The query of `s` finishes both frames, each at its own version. A later version does not change a record."""
    job = make()
    job.batch(a=1000, tables={"t": 1})
    assert (job.states(1000), outputs(job, 1000)) == (["open"], [])
    job.batch(a=1110, tables={"t": 2, "s": 2**63 - 1})
    job.batch(a=1210, tables={"t": 3})
    job.batch(a=1215, tables={"t": 4})
    assert job.states(1000, 1100) == ["complete", "complete"]
    assert outputs(job, 1000) == [("p", "s", 2**63 - 1), ("p", "t", 2)]
    assert outputs(job, 1100) == [("p", "s", 2**63 - 1), ("p", "t", 3)]
    assert told(job, "p") == {"s": 2**63 - 1, "t": 4}


def test_a_frame_has_the_tables_of_all_queries_in_order(make: Make) -> None:
    job = make()
    job.batch("q", b=1000, tables={"é": 1, "t": 2})
    job.batch(a=1000, tables={"z": 3})
    job.batch(a=1110)
    job.batch("q", b=1110)
    assert outputs(job, 1000) == [("p", "z", 3), ("q", "t", 2), ("q", "é", 1)]


def test_each_generation_keeps_its_own_versions(make: Make) -> None:
    job = make(frames=Frames(100, correction_delay_ms=50))
    job.batch(a=1000, tables={"t": 1})
    job.batch(a=1110, tables={"t": 2})
    job.batch(a=1111, updated=(1000,), tables={"t": 3})
    job.now += 50
    job.heartbeat(tables={"t": 4})  # the generation is due when the query tells this version
    of_frame = job.frame(1000)
    assert [[int(each.version) for each in generation.outputs] for generation in of_frame.generations] == [[2], [4]]
    assert of_frame.outputs == of_frame.generations[-1].outputs == [FrameOutput("p", "t", "4")]


def test_windows_that_are_written_after_the_commit_have_the_version_of_the_heartbeat(make: Make) -> None:
    job = make()
    job.batch("w", a=1000, output=(None,), tables={"t": 1})
    job.batch("w", a=1250, output=(1000,), tables={"t": 2})
    assert job.states(1000) == ["open"]
    job.heartbeat("w", output=(1250,), tables={"t": 3})
    assert (job.states(1000), outputs(job, 1000)) == (["complete"], [("w", "t", 3)])
    job.batch("w", a=1251, updated=(1000,), output=(1250,), tables={"t": 4})
    assert job.frame(1000).generation == 1
    job.heartbeat("w", output=(1251,), tables={"t": 5})
    assert (job.frame(1000).generation, outputs(job, 1000)) == (2, [("w", "t", 5)])


def test_a_frame_that_is_proven_empty_keeps_its_versions_when_rows_come(make: Make) -> None:
    """Its record has the versions at which everything below its end was written."""
    job = make()
    job.batch(a=1000, b=1000, tables={"t": 1})
    job.execute("idle", "p", ["b"])
    job.batch(a=1250, tables={"t": 2})
    assert job.states(1000, 1100) == ["complete_with_exclusions", "open"]
    job.batch(a=1251, b=1251, tables={"t": 3})
    assert job.states(1000, 1100) == ["complete_with_exclusions", "empty"]
    assert (outputs(job, 1000), outputs(job, 1100)) == ([("p", "t", 2)], [("p", "t", 2)])
    job.batch(a=1252, updated=(1100,), tables={"t": 4})
    assert [[int(of.version) for of in each.outputs] for each in job.frame(1100).generations] == [[2], [4]]


def test_a_begin_tells_versions(make: Make) -> None:
    """The versions of another run may be too old: it may have died between a write and the call that tells it."""
    job = make()
    job.batch(a=1000, tables={"t": 1, "s": 1})
    job.begin("p", tables={"t": 2})
    assert told(job, "p") == {"t": 2, "s": 1}
    job.execute("commit", Run("p", "c", "r"), 1, None)
    job.execute("begin", Run("p", "another", "r2"), 0)
    assert told(job, "p") == {}


def test_repeated_calls_do_not_bring_earlier_versions_back(make: Make) -> None:
    """A proxy may deliver a copy of a call after the calls that follow it."""
    job, run = make(), Run("p", "c", "r")
    begin = {"options": BeginOptions(outputs=versions({"t": 1}))}
    job.execute("begin", run, 0, **begin)
    job.heartbeat(tables={"t": 2}, after=0)
    job.execute("begin", run, 0, **begin)
    assert told(job, "p") == {"t": 2}
    job.execute("commit", run, 0, None, outputs=versions({"t": 3}))
    job.heartbeat(tables={"t": 4}, after=0)
    job.execute("commit", run, 0, None, outputs=versions({"t": 3}))
    job.execute("begin", run, 0, **begin)
    assert told(job, "p") == {"t": 4}
    job.execute("begin", run, 1, options=BeginOptions(outputs=versions({"t": 5})))
    job.execute("commit", run, 1, None, outputs=versions({"t": 6}))
    job.heartbeat(tables={"t": 4}, after=0)
    job.execute("begin", run, 1, options=BeginOptions(outputs=versions({"t": 5})))
    assert told(job, "p") == {"t": 6}


def test_a_run_that_takes_a_batch_over_tells_versions(make: Make) -> None:
    """The run before may have written the rows of the batch, and died before the commit."""
    job = make()
    job.begin("p", tables={"t": 1})
    run = Run("p", "c", "r2")
    job.execute("begin", run, 0, options=BeginOptions(outputs=versions({"t": 2})))
    assert told(job, "p") == {"t": 2}
    job.execute("commit", run, 0, None)
    job.execute("heartbeat", Run("p", "another", "r3"), job.now, outputs=versions({"t": 3}))
    assert told(job, "p") == {}, "the other checkpoint has begun no batch"


@pytest.mark.parametrize("successor", [None, "q", "p"])
def test_versions_are_forgotten_with_their_query(make: Make, successor: str | None) -> None:
    job = make()
    job.batch("q", b=1000, tables={"s": 1})
    job.batch(a=1000, tables={"t": 1})
    job.begin("p")
    job.execute("retire", "p", successor)
    assert (told(job, "p"), told(job, "q")) == ({}, {"s": 1})
    job.execute("done", "p", ["a"] if successor == "p" else [])
    job.batch("q", a=1110, b=1110)
    assert (job.states(1000)[0][:8], outputs(job, 1000)) == ("complete", [("q", "s", 1)])


def test_versions_are_forgotten_by_a_reset(make: Make) -> None:
    job = make()
    job.batch(a=1000, tables={"t": 1})
    job.reset()
    job.batch(a=1000)
    job.batch(a=1110)
    assert (job.states(1000), outputs(job, 1000), told(job, "p")) == (["complete"], [], {})


def test_a_query_keeps_the_twenty_tables_told_last(make: Make) -> None:
    job = make()
    job.batch(a=1000, tables={f"t{number:02}": number for number in range(20)})
    job.batch(a=1001, tables={"t00": 100})
    job.batch(a=1110, tables={"x": 1, "y": 2})
    kept = {f"t{number:02}": number for number in range(3, 20)} | {"t00": 100, "x": 1, "y": 2}
    assert told(job, "p") == kept
    assert {table: version for _, table, version in outputs(job, 1000)} == kept
    job.batch("q", b=1200, tables={"z": 1})
    job.batch(a=1210)
    assert len(outputs(job, 1100)) == 20 and ("q", "z", 1) not in outputs(job, 1100)


def test_the_answers_to_a_batch_name_the_first_unfinished_frame(make: Make) -> None:
    """A query writes it into its table, as a part of its claim."""
    job, run, found = make(), Run("p", "c", "r"), []

    def call(command: str, *arguments: object, **named: object) -> None:
        twin = job.twin
        result = twin.both(
            lambda: getattr(twin.machine, command)(*arguments, now_ms=job.now, **named),
            command_of(twin.store, command)(twin.job, *arguments, now_ms=job.now, **named),
        )
        page = twin.driver(twin.store.reads.frames(twin.job, now_ms=job.now))
        assert page.unfinished == result.unfinished_frame
        found.append(result.unfinished_frame)

    for number, time in enumerate((1050, 1250, 1251)):
        call("begin", run, number)
        job.execute("stage", run, number, PartitionReport(0, {"a": time}, {"a": 1}))
        account = BatchAccounting(("a",), (RowCounts(1, 0, 0, 0, 0),), frames=((time, 1, 0, 0),))
        call("commit", run, number, account)
        call("commit", run, number, account)
    assert found == [None, 1000, 1000, 1000, 1200, 1200, 1200, 1200, 1200]
    job = make(frames=None)
    call("begin", run, 0)
    assert found[-1] is None


STRIPPED = """
local function strip(packed)
  local found = cmsgpack.unpack(packed)
  found.outputs = nil
  for _, one in ipairs(found) do one.outputs = nil end
  return cmsgpack.pack(found)
end
for i = 1, 2 do
  local all = redis.call('HGETALL', KEYS[i])
  for at = 1, #all, 2 do redis.call('HSET', KEYS[i], all[at], strip(all[at + 1])) end
end
redis.call('SET', KEYS[3], strip(redis.call('GET', KEYS[3])))
"""


def test_the_state_of_a_version_without_tables_is_read(make: Make) -> None:
    job = make()
    job.batch(a=1000, tables={"t": 1})
    job.batch(a=1110, tables={"t": 2})
    job.batch(a=1111, updated=(1000,), tables={"t": 3})
    keys = [key_of(job.twin.job, name) for name in ("frame_records", "frame_generations")]
    keys.append(key_of(job.twin.job, "query", "p"))
    job.twin.driver(job.twin.store.redis.eval(STRIPPED, len(keys), *keys))  # type: ignore[arg-type]
    assert (outputs(job, 1000), told(job, "p")) == ([], {})
    log, query = job.twin.machine.frames, job.twin.machine.queries["p"]
    log.records = {start: replace(record, outputs=()) for start, record in log.records.items()}
    log.generations = {
        start: [replace(each, outputs=()) for each in of_frame] for start, of_frame in log.generations.items()
    }
    query.outputs = {}
    job.batch(a=1112, updated=(1000,), tables={"t": 4})
    assert [[int(of.version) for of in each.outputs] for each in job.frame(1000).generations] == [[], [], [4]]
