"""Situations in which a frame must stay open, or must have another generation, on both machines."""

from collections.abc import Callable, Iterator

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts
from tidegate.domain.config import JobConfig
from tidegate.domain.frames import CONFIRMED_MS, LOSSES_KEPT, RESTORED, FrameStatus
from tidegate.domain.job import Run, TokenClaim
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import LimitingLag

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

    def begin(self, query: str, output: tuple[int | None] | None = None) -> Run:
        run = Run(query, "c", "r")
        options = BeginOptions() if output is None else BeginOptions(tells_output=True, output_watermark=output[0])
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
        **times: int,
    ) -> None:
        """Begin, report and commit a batch with a row of each substream, and updated rows of the first one."""
        run = self.begin(query, output)
        number = self.batches.get(query, 0)
        self.batches[query] = number + 1
        self.execute("stage", run, number, PartitionReport(0, times, dict.fromkeys(times, 1)))
        frames = tuple((at, 1, 0, 0) for at in times.values()) + tuple((at, 1, 1, 0) for at in updated)
        rows = [RowCounts(1, 0, 0, 0, 0) for _ in times]
        if updated:
            rows[0] = RowCounts(1, len(updated), 0, 0, 0)
        account = BatchAccounting(tuple(times), tuple(rows), frames=frames if is_counted else None)
        self.execute("commit", run, number, account, offsets=offsets)

    def heartbeat(self, query: str = "p", output: tuple[int | None] | None = None) -> None:
        named = {} if output is None else {"tells_output": True, "output_watermark": output[0]}
        after = self.batches[query] - 1
        self.execute("heartbeat", Run(query, "c", "r"), self.now, after_batch=after, **named)

    def frame(self, time: int) -> FrameStatus:
        [frame] = self.twin.driver(self.twin.store.reads.frame(self.twin.job, time, self.now)).frames
        return frame

    def states(self, *times: int) -> list[str]:
        return [self.frame(time).state for time in times]


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
    answer = job.twin.driver(job.twin.store.actions.reset(job.twin.job, now_ms=job.now))
    assert answer == job.twin.machine.reset(job.now, answer.state_epoch)
    job.twin.compare_records()
    job.batches.clear()
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
