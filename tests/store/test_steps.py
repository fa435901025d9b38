"""Commands in steps: a command that visits all substreams of a large job, or names many substreams, blocks Redis for a
short time only, and has the result of one atomic command.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from tests.support.driver import Driver, records
from tests.support.store import JobStore
from tests.support.versions.constants import library_with
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import NO_ROWS, BatchAccounting
from tidegate.domain.config import MAX_OVERRIDES, MAX_WILDCARDS, JobConfig, Override
from tidegate.domain.errors import EventTimeMissing, InvalidConfig
from tidegate.domain.job import ANY_VERSION, Run
from tidegate.domain.policies import LimitingLag, LimitingLagAndLull, TargetCompleteness
from tidegate.store import functions, pieces, servers
from tidegate.store.functions import StepsLost
from tidegate.store.jobs import compile_config
from tidegate.store.keyspace import SWEEPS, job_key, key_of
from tidegate.store.library import ENTRIES

SIZE = 20_000
"""Substreams of a large job: ten times as many as one call of a function visits."""

FLAT, DRIVEN = LimitingLag(10), LimitingLagAndLull(10, 10**6)
Command = Callable[[JobStore, str], Coroutine[Any, Any, object]]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step visit three substreams, so that commands of small jobs run in steps."""
    in_steps = library_with(monkeypatch, STEP=3, ENTRIES=3, PIECE=3)
    for module in (functions, servers):
        monkeypatch.setattr(module, "library", lambda: in_steps)


async def fill(store: JobStore, job: str, config: JobConfig, size: int, query: str = "") -> None:
    await store.configure(job, config, {}, None, now_ms=0)
    for first in range(0, size, 2000):
        times = {f"s{number}": number for number in range(first, min(first + 2000, size))}
        if query:
            await store.actions.declare(job, query, [*times], times, now_ms=0)
        else:
            await store.report(job, times, now_ms=0)
    await store.sweep(job, now_ms=0)


@dataclass(frozen=True)
class Times:
    """Calls of functions: their number, and the processor time of the server for the average call, in microseconds."""

    calls: int
    us: float


async def measured(store: JobStore, *what: Coroutine[Any, Any, object]) -> Times:
    async def stats() -> tuple[int, float]:
        cpu, commands = await store.redis.info("cpu"), await store.redis.info("commandstats")
        return commands["cmdstat_fcall"]["calls"], 1e6 * (cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    calls, us = await stats()
    for each in what:
        await each
    later, total = await stats()
    return Times(later - calls, (total - us) / (later - calls))


async def swept(store: JobStore, job: str, now_ms: int) -> None:
    while (await store._functions.run("sweep", job, now_ms)).get("unfinished"):  # noqa: SLF001
        pass


NAMES = [f"s{number}" for number in range(SIZE)]
TIMES = {name: SIZE + number for number, name in enumerate(NAMES)}
DELAYS = {name: tuple((bucket, 2) for bucket in range(5)) for name in NAMES}
RUN = Run("q", "c", "r")


async def batch(store: JobStore, job: str, is_committed: bool) -> None:
    """Run a batch with all substreams in two partitions. It is committed, or the begin of the next batch commits it."""
    await store.begin(job, RUN, 0, now_ms=1)
    for partition in range(2):
        report = PartitionReport(partition, TIMES, dict.fromkeys(NAMES, 3), delays=DELAYS)
        await store.stage(job, RUN, 0, report, now_ms=1)
    if is_committed:
        counts = tuple(replace(NO_ROWS, on_time=5, late=1) for _ in NAMES)
        hours = tuple(((number % 50, 6, 0, 1),) for number in range(SIZE))
        accounting = BatchAccounting(tuple(NAMES), counts, "diverted", hours)
        await store.commit(job, RUN, 0, accounting, reported=2 * SIZE, now_ms=2)
    else:
        await store.begin(job, RUN, 1, now_ms=2)


COMMANDS: dict[str, tuple[JobConfig, str, Command]] = {
    "report": (JobConfig(FLAT), "", lambda store, job: store.report(job, TIMES, now_ms=1)),
    "report with delays": (
        JobConfig(TargetCompleteness(target=0.99, cold_start_lag_ms=5, min_rows=5)),
        "",
        lambda store, job: store.report(job, TIMES, delays=DELAYS, now_ms=1),
    ),
    "report to policies that follow the clock": (
        JobConfig(DRIVEN),
        "",
        lambda store, job: store.report(job, TIMES, now_ms=1),
    ),
    "declare": (
        JobConfig(FLAT),
        "q",
        lambda store, job: store.actions.declare(job, "q", [f"new{name}" for name in NAMES], now_ms=1),
    ),
    "batch": (JobConfig(FLAT), "q", lambda store, job: batch(store, job, is_committed=True)),
    "batch without a commit": (JobConfig(FLAT), "q", lambda store, job: batch(store, job, is_committed=False)),
    "make idle": (JobConfig(DRIVEN), "q", lambda store, job: store.actions.idle(job, "q", NAMES, now_ms=1)),
    "done": (JobConfig(DRIVEN), "q", lambda store, job: store.actions.done(job, "q", NAMES, now_ms=1)),
    "evict": (JobConfig(DRIVEN), "q", lambda store, job: store.actions.evict(job, "q", NAMES, now_ms=1)),
    "restore all": (JobConfig(DRIVEN), "q", lambda store, job: store.actions.restore(job, "q", TIMES, now_ms=1)),
    "configure": (
        JobConfig(FLAT, idle_timeout_ms=10**9),
        "",
        lambda store, job: store.configure(job, JobConfig(LimitingLag(5)), {}, ANY_VERSION, now_ms=1),
    ),
    "configure to a policy that follows the clock": (
        JobConfig(FLAT),
        "",
        lambda store, job: store.configure(job, JobConfig(DRIVEN, idle_timeout_ms=5), {}, ANY_VERSION, now_ms=1),
    ),
    "restore": (
        JobConfig(DRIVEN),
        "q",
        lambda store, job: store.actions.restore(job, "q", {"s0": 10**6}, now_ms=1),
    ),
    "retire": (JobConfig(FLAT), "q", lambda store, job: store.actions.retire(job, "q", None, now_ms=1)),
    "hand over": (JobConfig(DRIVEN), "q", lambda store, job: store.actions.retire(job, "q", "next", now_ms=1)),
    "idle": (JobConfig(FLAT, idle_timeout_ms=10), "", lambda store, job: swept(store, job, 10)),
    "query timeout": (JobConfig(DRIVEN, query_timeout_ms=10), "q", lambda store, job: swept(store, job, 10)),
    "sweep after an outage": (JobConfig(DRIVEN), "", lambda store, job: swept(store, job, 10**5)),
    "reset": (JobConfig(FLAT), "q", lambda store, job: store.actions.reset(job, now_ms=1)),
    "delete": (JobConfig(FLAT), "q", lambda store, job: store.delete(job, now_ms=1)),
    "complete": (JobConfig(DRIVEN), "", lambda store, job: store.actions.complete(job, now_ms=1)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "configure" else pytest.mark.slow) for name in COMMANDS]
)
def test_no_call_takes_much_longer_than_a_report(driver: Driver, job_name: str, name: str) -> None:
    """A command of one large job must not block the jobs of others, as a report of all its substreams would."""
    config, query, command = COMMANDS[name]
    store = JobStore(driver.store.redis, unattended_after_ms=15_000)

    async def compare() -> tuple[Times, Times]:
        await fill(store, job_name, config, SIZE, query)
        if query:
            run = Run(query, "c", "r")
            await store.heartbeat(job_name, run, 0, now_ms=0)
        await store.configure(f"{job_name}.plain", JobConfig(FLAT), {}, None, now_ms=0)
        reports = ({f"s{number}": number + report for number in range(ENTRIES)} for report in range(5))
        report = await measured(store, *(store.report(f"{job_name}.plain", names, now_ms=0) for names in reports))
        return report, await measured(store, command(store, job_name))

    report, times = driver(compare())
    print(f"report of {ENTRIES}: {report.us:.0f} us; {name}: {times.calls} calls of {times.us:.0f} us")
    assert times.us < 10 * report.us
    driver(store.delete(job_name))
    driver(store.delete(f"{job_name}.plain"))


async def first_step(store: JobStore, job: str, config: JobConfig) -> str:
    """Begin to configure a job, as a coordinator that is killed after the first step; return the id of the steps."""
    arguments = {
        "version": {"revision": 1},
        "config": "{}",
        "compiled_config": compile_config(config),
        "actor": "",
        "reason": "",
    }
    call = store._functions._call("configure", job, store._functions._argument("configure", None, arguments))  # noqa: SLF001
    reply = functions.map_of(await store.redis.execute_command(*call))  # type: ignore[no-untyped-call]
    return str(reply["steps"])


READS: dict[str, Command] = {
    "status": lambda store, job: store.reads.status(job),
    "statuses": lambda store, job: store.reads.statuses([job]),
    "substreams": lambda store, job: store.reads.substreams(job),
    "delays": lambda store, job: store.reads.delays(job),
    "history": lambda store, job: store.reads.history(job),
    "held": lambda store, job: store.reads.held(job, 3),
    "watch": lambda store, job: store.watch(job, None, 1),
    "sweep": lambda store, job: store.sweep_due(job),
    "report": lambda store, job: store.report(job, {"s0": 1}),
}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("name", READS)
def test_any_call_finishes_the_command_of_a_coordinator_that_has_died(driver: Driver, job_name: str, name: str) -> None:
    """A job must not stay locked, and clients must never see a job that is changed in part."""
    store = driver.store

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.report(job_name, {f"s{number}": 100 + number for number in range(10)})
        await first_step(store, job_name, JobConfig(LimitingLag(4)))
        assert await store.redis.zscore(SWEEPS, job_name) is not None, "a sweeper must find the job"
        await READS[name](store, job_name)
        status = await store.reads.status(job_name)
        assert status.revision == 2
        assert (await store.sweep(job_name)).watermark == 96
        assert await store.redis.hget(job_key(job_name), "steps_argument") is None

    driver(check())


@pytest.mark.usefixtures("small_steps")
def test_a_staged_report_has_more_pieces_with_delays_than_with_substreams(driver: Driver, job_name: str) -> None:
    """A substream with many delay buckets takes as long as several substreams, so it counts as several."""
    store, names = driver.store, [f"s{number}" for number in range(4)]
    delays = {name: tuple((bucket, 2) for bucket in range(30)) for name in names}

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.actions.declare(job_name, "q", names, dict.fromkeys(names, 100))
        await store.begin(job_name, RUN, 0)
        report = PartitionReport(0, dict.fromkeys(names, 100), dict.fromkeys(names, 60), delays=delays)
        await store.stage(job_name, RUN, 0, report)
        await store.commit(job_name, RUN, 0, None)
        _, known = await store.reads.delays(job_name, [("q", name) for name in names])
        assert [len(sketch.weights) for _, sketch in known.substreams.values()] == [30] * 4

    driver(check())


@pytest.mark.usefixtures("small_steps")
def test_a_full_server_finishes_commands_that_have_begun(driver: Driver, job_name: str) -> None:
    """The job would otherwise be locked until the server has memory again. The steps free the memory of the command."""
    store = driver.store

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.report(job_name, {f"s{number}": 100 for number in range(10)})
        await first_step(store, job_name, JobConfig(LimitingLag(4)))
        await store.redis.config_set("maxmemory", 1)
        try:
            assert (await store.reads.status(job_name)).revision == 2
            with pytest.raises(OutOfMemoryError):
                await store.report(job_name, {"s0": 200})
        finally:
            await store.redis.config_set("maxmemory", 0)

    driver(check())


@pytest.mark.usefixtures("small_steps")
def test_readers_see_a_job_before_or_after_a_command(driver: Driver, job_name: str) -> None:
    """A reader between two steps would see a watermark or a revision that no atomic command produces."""
    store, seen = driver.store, list[tuple[int, int | None, set[int | None]]]()

    async def read(done: asyncio.Event) -> None:
        while not done.is_set():
            status, table = await store.reads.status(job_name), await store.reads.substreams(job_name)
            lags = {row.lag for row in table.rows}
            seen.append((status.revision, status.state.watermark, lags))

    async def change() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.report(job_name, {f"s{number}": 100 for number in range(100)})
        done = asyncio.Event()
        readers = [asyncio.create_task(read(done)) for _ in range(3)]
        for revision in range(1, 6):
            policy = LimitingLag(10 - revision)
            assert (await store.configure(job_name, JobConfig(policy), {}, ANY_VERSION)).revision == revision + 1
        done.set()
        await asyncio.gather(*readers)

    driver(change())
    assert len({revision for revision, _, _ in seen}) > 1
    for revision, watermark, lags in seen:
        assert watermark == 100 - (11 - revision)
        assert len(lags) == 1


@pytest.mark.usefixtures("small_steps")
def test_a_reset_during_a_command_ends_it(driver: Driver, job_name: str) -> None:
    """An operator must be able to reset a job whose command cannot end. The outcome of the command is then unknown."""
    store = driver.store

    async def check() -> None:
        created = await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.report(job_name, {f"s{number}": 100 for number in range(10)})
        steps = await first_step(store, job_name, JobConfig(LimitingLag(4)))
        await store.actions.reset(job_name)
        with pytest.raises(StepsLost):
            await store._functions._last_reply(job_name, steps)  # noqa: SLF001
        assert (await store.report(job_name, {"a": 5})).state.incarnation == created.state.incarnation + 1
        await store.report(job_name, {f"s{number}": 100 for number in range(10)})
        await store.configure(job_name, JobConfig(FLAT), {}, ANY_VERSION)
        await store.delete(job_name)

    driver(check())


@pytest.mark.usefixtures("small_steps")
def test_a_report_that_arrives_during_a_commit_counts(
    driver: Driver, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator joins the reports of a large batch. A report that it has not read must not be lost."""
    store, joins = driver.store, list[int]()

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.begin(job_name, RUN, 0)
        names = [f"s{number}" for number in range(10)]
        await store.stage(job_name, RUN, 0, PartitionReport(0, dict.fromkeys(names, 100), dict.fromkeys(names, 1)))
        loop, join = asyncio.get_running_loop(), pieces.combine_reports

        def join_late(reports: Any) -> Any:
            joined = join(reports)
            joins.append(joined[0])
            if len(joins) == 1:
                late = PartitionReport(1, {"a": 50}, {"a": 7})
                asyncio.run_coroutine_threadsafe(store.stage(job_name, RUN, 0, late), loop).result()
            return joined

        monkeypatch.setattr(functions, "combine_reports", join_late)
        result = await store.commit(job_name, RUN, 0, None, reported=11)
        assert (result.applied, result.state.watermark) == (True, 40)
        assert {row.substream: row.reported for row in (await store.reads.substreams(job_name)).rows}["a"] == 7

    driver(check())
    assert joins == [10, 11]


@pytest.mark.usefixtures("small_steps")
def test_reports_that_another_run_has_replaced_during_a_begin_do_not_count(
    driver: Driver, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The begin of the next batch commits the open batch. Another run may discard its reports in between."""
    store, join, joins = driver.store, pieces.combine_reports, list[int]()
    first, second, third = (Run("q", "c", run) for run in ("r1", "r2", "r3"))

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        await store.begin(job_name, first, 0)
        names = [f"s{number}" for number in range(10)]
        await store.stage(job_name, first, 0, PartitionReport(0, dict.fromkeys(names, 100), dict.fromkeys(names, 1)))
        loop = asyncio.get_running_loop()

        async def take_over() -> None:
            await store.begin(job_name, second, 0)
            await store.stage(job_name, second, 0, PartitionReport(0, {"a": 50}, {"a": 7}))

        def join_late(reports: Any) -> Any:
            joined = join(reports)
            joins.append(joined[0])
            if len(joins) == 1:
                asyncio.run_coroutine_threadsafe(take_over(), loop).result()
            return joined

        monkeypatch.setattr(functions, "combine_reports", join_late)
        assert (await store.begin(job_name, third, 1)).state.watermark == 40
        assert [row.substream for row in (await store.reads.substreams(job_name)).rows] == ["a"]

    driver(check())
    assert joins == [10, 1]


@pytest.mark.usefixtures("small_steps")
def test_a_command_whose_columns_are_lost_changes_nothing(driver: Driver, job_name: str) -> None:
    """Redis may lose the columns that the coordinator stores before a large command. The client then repeats it."""
    store = driver.store
    names = {f"s{number}": 100 for number in range(10)}

    async def check() -> None:
        await store.configure(job_name, JobConfig(FLAT), {}, None)
        before = await store.reads.status(job_name)
        times = [*names.values()]
        report = pieces.direct_pieces([*names], max_event_times=times, min_event_times=None, watermarks=None)
        stored = await store._functions.columns(job_name, report)  # noqa: SLF001
        arguments = {**stored, "tokens": []}
        await store.redis.delete(key_of(job_name, "pieces", arguments["stored"]))
        with pytest.raises(StepsLost):
            await store._functions.send("report", job_name, lambda: arguments)  # noqa: SLF001
        after = await store.reads.status(job_name)
        assert replace(after.state, now_ms=0) == replace(before.state, now_ms=0)
        assert (await store.report(job_name, names)).state.watermark == 90
        kinds = {str(key).split(":")[2] for key in await store.redis.keys(f"{job_key(job_name)}:*")}
        assert not kinds & {"pieces", "columns"}

    driver(check())


def overrides(wildcards: int) -> tuple[Override, ...]:
    """Return patterns whose pieces all occur in a name, except the number."""
    return tuple(Override("*a" * (wildcards - 2) + f"*{number}b*", FLAT) for number in range(MAX_OVERRIDES))


def test_patterns_with_many_wildcards_are_refused(driver: Driver, job_name: str) -> None:
    """One report of new names took minutes under a hundred patterns of ninety wildcards."""
    with pytest.raises(InvalidConfig, match="at most 4 wildcards") as refused:
        driver(driver.store.configure(job_name, JobConfig(FLAT, overrides=overrides(MAX_WILDCARDS + 1)), {}, None))
    assert refused.value.details["field"] == "overrides.0.substreams"


def test_new_names_under_many_patterns_do_not_block_redis(driver: Driver, job_name: str) -> None:
    """Patterns are matched once for each name, in time proportional to its length."""
    store, ratios = driver.store, list[float]()

    async def compare() -> None:
        plain = f"{job_name}.plain"
        await store.configure(plain, JobConfig(FLAT), {}, None, now_ms=0)
        await store.configure(job_name, JobConfig(FLAT, overrides=overrides(MAX_WILDCARDS)), {}, None, now_ms=0)
        for attempt in range(5):
            names = {"a" * 180 + f"{attempt}.{number}": number for number in range(500)}
            base = await measured(store, store.report(plain, names, now_ms=0))
            matched = await measured(store, store.report(job_name, names, now_ms=0))
            ratios.append(matched.us / base.us)

    driver(compare())
    print([round(ratio, 1) for ratio in ratios])
    assert sorted(ratios)[2] < 60


def test_a_refused_command_in_steps_does_not_advance_the_clock(
    driver: Driver, job_name: str, small_steps: None
) -> None:
    """The next command would not see the outage before it, nor the time for a sample of the timeline."""
    store = JobStore(driver.store.redis, unattended_after_ms=10)

    async def check() -> list[str]:
        await store.configure(job_name, JobConfig(FLAT, idle_timeout_ms=100), {}, None, now_ms=0)
        await store.report(job_name, {"a": 1}, now_ms=0)
        with pytest.raises(EventTimeMissing):
            await store.report(job_name, {}, watermarks={f"s{number}": number for number in range(20)}, now_ms=1000)
        await store.sweep(job_name, now_ms=1000)
        return [record.kind for _, record in await records(store, job_name)]

    assert "unattended" in driver(check())
