"""The processor time of functions in Redis, by the server's statistics: reports, plain commands and sweeps."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
from msgspec import msgpack
from redis import Redis

from benchmarks.paired import interleave
from benchmarks.processes import processor_s
from benchmarks.results import Row, Spread, ratios
from tests.support.store import JobStore
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import HOUR_MS, Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag, LimitingTimestampAndWallClockLag, Policy
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import ONE_SERVER
from tidegate.store.library import library

Result = TypeVar("Result")

SUBSTREAMS = 10_000
REPORTS = {1: 10_000, 100: 1_000}
"""Number of reports in a round, by their number of substreams."""
CALLS: dict[tuple[int, int], float | None] = {(1, 1): None, (1, 16): 1.7, (100, 1): 1.4}
"""Highest ratio to plain commands, by substreams of a report and reports of a call. The coordinator merges the reports
that arrive during a round trip: with 16 connections, about 16."""
PIPELINED = 16
SKEWED, MAX_SKEW_MS = 100, 3_600_000
"""Number of skewed substreams beside the others, and the limit on skew."""
LIMITED_TARGET = 1.15
"""Highest ratio of a report with the limits to one without."""
BATCHES = {1: 400, 100: 100}
"""Number of batches in a round, by their number of substreams."""
BATCH_MS = 60_000
RUN = Run("query", "checkpoint", "run")
WITHOUT_LIMITS = JobConfig(LimitingLag(1000), FrameThrottle(HOUR_MS), frames=Frames("hour"), max_future_skew_ms=None)
LIMITED = replace(WITHOUT_LIMITS, arrival_target=0.99, max_skew_ms=MAX_SKEW_MS)
SWEPT = (10_000, 100_000)
"""Numbers of substreams that follow the clock."""
SWEEP_TARGET_MS = 20
SWEEPS_IN_A_ROUND = 10
START, LAG = 1_700_000_000_000, 1000
FOLLOWING = LimitingTimestampAndWallClockLag(LAG, LAG)


class Bench:
    """An embedded Valkey, with a store and a client for plain commands."""

    def __init__(self, valkey: EmbeddedValkey) -> None:
        assert valkey.pid is not None
        self.process = psutil.Process(valkey.pid)
        self.redis = Redis(unix_socket_path=valkey.socket)
        self.runner = asyncio.Runner()
        self.store = JobStore(connect(valkey.url))
        self._sent = 0
        self._now: dict[str, int] = {}

    def wait_for(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of the store."""
        return self.runner.run(coroutine)

    def create(self, job: str, policy: Policy, substreams: int, max_skew_ms: int | None = None) -> None:
        """Create a job, and report all its substreams; with a limit on skew, also some that are behind it."""
        self._now[job] = START
        config = JobConfig(policy, max_skew_ms=max_skew_ms, max_future_skew_ms=None)
        self.wait_for(self.store.configure(job, config, {}, None, now_ms=START))
        if max_skew_ms is not None:
            times = {f"skewed-{number}": START - 2 * max_skew_ms for number in range(SKEWED)}
            self.wait_for(self.store.report(job, times, now_ms=START))
        self._report_all(job, substreams)

    def _report_all(self, job: str, substreams: int) -> None:
        now_ms = self._now[job]
        for at in range(0, substreams, 5000):
            times = {_name(number): now_ms + number for number in range(at, min(at + 5000, substreams))}
            self.wait_for(self.store.report(job, times, now_ms=now_ms))

    def create_query(self, job: str, config: JobConfig) -> None:
        """Create a job whose substreams are those of a query, as :meth:`create` does."""
        self._now[job] = START
        self.wait_for(self.store.configure(job, config, {}, None, now_ms=START))
        # Each frame has rows: one without rows would wait for evidence, which has a cost of its own.
        behind_ms = (MAX_SKEW_MS + BATCH_MS, 2 * MAX_SKEW_MS)
        skewed = {f"skewed-{number}": START - behind_ms[number % 2] for number in range(SKEWED)}
        self._batch(job, skewed | {_name(number): START for number in range(SUBSTREAMS)})

    def batches(self, k: int, job: str) -> float:
        """Return the microseconds per batch with ``k`` substreams."""
        batches = [random.sample(range(SUBSTREAMS), k) for _ in range(BATCHES[k])]
        before = processor_s(self.process)
        for numbers in batches:
            self._now[job] += BATCH_MS
            self._batch(job, {_name(number): self._now[job] - 1000 * (number % 60) for number in numbers})
        return 1e6 * (processor_s(self.process) - before) / len(batches)

    def _batch(self, job: str, times: Mapping[str, int]) -> None:
        now_ms = self._now[job]
        batch_id, store = (now_ms - START) // BATCH_MS, self.store
        self.wait_for(store.begin(job, RUN, batch_id, options=BeginOptions(input_age_ms=0), now_ms=now_ms))
        report = PartitionReport(0, times, dict.fromkeys(times, 1))
        self.wait_for(store.stage(job, RUN, batch_id, report, now_ms=now_ms))
        frames = tuple((time, 1, 0, 0) for time in times.values())
        counts = (RowCounts(1, 0, 0, 0, 0),) * len(times)
        self.wait_for(
            store.commit(job, RUN, batch_id, BatchAccounting(tuple(times), counts, frames=frames), now_ms=now_ms)
        )

    def reports(self, k: int, merged: int, job: str = "reports") -> float:
        """Return the microseconds per report by the function, with ``merged`` reports in each call."""
        keys = ONE_SERVER.of_call(job)
        command = ("FCALL", library().function("report"), len(keys), *keys)
        columns = {"watermarks": [], "min_event_times": [], "tokens": [], "now_ms": START, "unscheduled": True}

        def calls(names: list[str], event_time: int) -> list[tuple[object, ...]]:
            arguments = columns | {"members": names, "max_event_times": [event_time] * len(names)}
            return [(*command, msgpack.encode(arguments))]

        return self._us(k, merged, calls)

    def plain(self, k: int) -> float:
        """Return the microseconds of a report's sorted-set commands, sent without a function."""

        def commands(names: list[str], event_time: int) -> list[tuple[object, ...]]:
            scored = [part for name in names for part in (event_time, name)]
            return [
                ("ZADD", "plain:active", "GT", *scored),
                ("ZADD", "plain:last_events", *(part for name in names for part in (START, name))),
                ("ZRANGE", "plain:active", 0, 0, "WITHSCORES"),
            ]

        return self._us(k, 1, commands)

    def _us(self, k: int, merged: int, commands: Callable[[list[str], int], list[tuple[object, ...]]]) -> float:
        """Send commands, each for ``merged`` reports of ``k`` substreams; return the processor time of each report."""
        prepared = []
        for _ in range(REPORTS[k] // merged):
            self._sent += 1
            names = [_name(number) for number in random.sample(range(SUBSTREAMS), k * merged)]
            prepared.append(commands(names, START + self._sent))
        before = processor_s(self.process)
        for at in range(0, len(prepared), PIPELINED):
            pipeline = self.redis.pipeline(transaction=False)
            for command in (command for report in prepared[at : at + PIPELINED] for command in report):
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            pipeline.execute()
        return 1e6 * (processor_s(self.process) - before) / (len(prepared) * merged)

    def longest_sweep_ms(self, job: str, substreams: int) -> float:
        """Return the longest sweep of a round, in milliseconds.

        The watermarks of all substreams begin to follow the clock between the same two sweeps.
        """
        self._report_all(job, substreams)
        longest = 0.0
        for _ in range(SWEEPS_IN_A_ROUND):
            self._now[job] += LAG
            before = self._function_us()
            self.wait_for(self.store.sweep(job, now_ms=self._now[job]))
            longest = max(longest, (self._function_us() - before) / 1000)
        return longest

    def _function_us(self) -> int:
        return int(self.redis.info("commandstats")["cmdstat_fcall"]["usec"])

    def close(self) -> None:
        """Close the connections."""
        self.wait_for(self.store.redis.aclose())
        self.runner.close()
        self.redis.close()


def _name(number: int) -> str:
    return f"substream-{number:06}"


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure reports of each size, and sweeps."""
    with EmbeddedValkey(out / f"scripts-{time.time_ns()}") as valkey:
        bench = Bench(valkey)
        bench.create("reports", LimitingLag(LAG), SUBSTREAMS)
        bench.create("skewed", LimitingLag(LAG), SUBSTREAMS, MAX_SKEW_MS)
        bench.create_query("batches", WITHOUT_LIMITS)
        bench.create_query("limited batches", LIMITED)
        measurements: dict[tuple[str, int, int], Callable[[], float]] = {}
        for k, merged in CALLS:
            measurements["function", k, merged] = partial(bench.reports, k, merged)
        for k in REPORTS:
            measurements["skewed", k, 1] = partial(bench.reports, k, 1, "skewed")
            for job in ("batches", "limited batches"):
                measurements[job, k, 1] = partial(bench.batches, k, job)
            measurements["batches again", k, 1] = partial(bench.batches, k, "batches")
            measurements["plain", k, 1] = partial(bench.plain, k)
            measurements["plain again", k, 1] = partial(bench.plain, k)
        for substreams in SWEPT:
            bench.create(f"swept-{substreams}", FOLLOWING, substreams)
            measurements["sweep", substreams, 1] = partial(bench.longest_sweep_ms, f"swept-{substreams}", substreams)
        found = interleave(measurements, rounds, show)
        bench.close()
    rows = []
    for k in REPORTS:
        control = ratios(found["plain again", k, 1], found["plain", k, 1])
        rows.append(Row(f"Redis, k={k}: plain commands again / plain commands (control)", control))
    for (k, merged), target in CALLS.items():
        name = f"Redis, k={k}, {merged} report(s) in a call: report / plain commands"
        rows.append(Row(name, ratios(found["function", k, merged], found["plain", k, 1]), at_most=target))
    for k in REPORTS:
        ratio = ratios(found["skewed", k, 1], found["function", k, 1])
        rows.append(Row(f"Redis, k={k}: report with max_skew_ms / report", ratio, at_most=LIMITED_TARGET))
        name = f"Redis, k={k}: batch with max_skew_ms and arrival_target / batch"
        control = ratios(found["batches again", k, 1], found["batches", k, 1])
        rows.append(Row(f"Redis, k={k}: batch again / batch (control)", control))
        rows.append(Row(name, ratios(found["limited batches", k, 1], found["batches", k, 1]), at_most=LIMITED_TARGET))
    for substreams in SWEPT:
        longest = Spread.of(found["sweep", substreams, 1])
        rows.append(Row(f"longest sweep of {substreams:,} substreams", longest, "ms", at_most=SWEEP_TARGET_MS))
    return rows
