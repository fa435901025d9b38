"""The Lua functions equal the domain: both get the same commands, and all replies, tables and records must be the same.

The domain evaluates everything in each step. The Lua functions touch only what changes. In addition, invariants are
asserted from the history of the commands, independently of both sides.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.store.strategies import (
    NAMES,
    START,
    batches,
    caught_up_names,
    configs,
    counts,
    delays,
    marks,
    max_event_times,
    names,
    offsets,
    ordinary_times,
    outputs,
    owners,
    pinned_watermarks,
    rows_of_frames,
    rows_of_hours,
    runs,
    seldom,
    some_names,
    table_versions,
    times,
    tokens,
    waits,
)
from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tests.support.versions.constants import library_with
from tests.support.versions.previous import previous_library
from tidegate.domain.batches import BeginOptions, CaughtUp, PartitionReport
from tidegate.domain.commands import NO_DELAYS
from tidegate.domain.completeness import BatchAccounting, LateDisposition, RowCounts, RowsByDelay, RowsOfHour
from tidegate.domain.config import JobConfig
from tidegate.domain.job import ConfigVersion, ConsumerPosition, PinnedWatermark, Run, TableVersion, TokenClaim
from tidegate.domain.limits import passed_substreams
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.results import Effect, Holder
from tidegate.domain.values import above, highest
from tidegate.domain.views import explain
from tidegate.store import functions, servers
from tidegate.store.library import library

Argument = TypeVar("Argument")


class Twins(RuleBasedStateMachine):
    """Rules that each execute one command on both sides. The test sets ``make_driver``."""

    make_driver: Callable[[], Driver]

    @initialize(
        config=configs,
        unattended_after_ms=st.sampled_from([None, 25]),
        max_substreams=st.sampled_from([None, None, 2, 4]),
    )
    def create(self, config: JobConfig, unattended_after_ms: int | None, max_substreams: int | None) -> None:
        config = self.declared(config)
        self.twin = self.compared(Twin(self.make_driver(), config, START, unattended_after_ms, max_substreams))
        self.machine, self.store, self.job = self.twin.machine, self.twin.store, self.twin.job
        self.config = config
        self.last: Callable[[], Any] | None = None
        self.pinned_watermarks: dict[tuple[str, str, int], int | None] = {}
        self.open: dict[str, tuple[Run, int, int | None]] = {}
        self.staged: dict[str, set[str]] = {}
        self.input_settled_ms: dict[str, int | None] = {}
        self.checkpoint: dict[str, str] = {}
        self.checked = 1
        self.evidence_ms: dict[tuple[str, str | None], int] = {}
        self.last_seen_ms: dict[tuple[str, str], int] = {}
        self.outputs: dict[str, tuple[str, int | None]] = {}

    def teardown(self) -> None:
        if hasattr(self, "twin"):
            self.twin.close()

    @property
    def now(self) -> int:
        return self.twin.now

    @property
    def job_now(self) -> int:
        """The processing time of the job, which does not go back."""
        return max(self.now, self.twin.answers[-1].now_ms)

    def execute(self, command: str, *arguments: Any, **named: Any) -> Any:
        """Execute a command that both sides have under one name, with the same arguments."""

        def again() -> Any:
            return self.twin.both(
                lambda: getattr(self.machine, command)(*arguments, now_ms=self.now, **named),
                command_of(self.store, command)(self.job, *arguments, now_ms=self.now, **named),
            )

        self.last = again
        return again()

    # -- time -----------------------------------------------------------------------------------------------------

    @rule(step=st.one_of(st.integers(0, 30), st.integers(0, 30), st.integers(-20, 0), st.integers(100, 800)))
    def time_passes(self, step: int) -> None:
        """Advance the clock; it may also stand still, go back or jump."""
        self.twin.now += step

    @rule()
    def sweep(self) -> None:
        self.execute("sweep")

    @rule(most=st.integers(1, 4), really=seldom)
    def explain(self, most: int, really: bool) -> None:
        """Compare the explanation from the store's reply with that from the whole state.

        Then remove the holders one after the other, and compare each watermark with its prediction.
        """
        self.execute("sweep")
        held = self.twin.driver(self.store.reads.held(self.job, most, now_ms=self.now))
        explained = explain(self.machine, self.job_now, most)
        assert explain(held.job(self.machine.config), self.job_now, most) == explained
        assert held.passed == passed_substreams(self.machine)
        for one in explained.holders if really else ():
            if one.reason == "missing_query" and not self.can_retire(one.query):
                break
            self.remove_holder(one)
            answer = self.twin.answers[-1]
            assert (answer.coalesced_watermark, answer.watermark) == (
                one.coalesced_watermark_without,
                one.watermark_without,
            )

    def remove_holder(self, held_by: Holder) -> None:
        if held_by.hold is not None:
            self.execute("release", held_by.hold)
        elif held_by.reason == "open_batch":
            self.retire(held_by.query, held_by.query)
        elif held_by.reason == "missing_query":
            self.retire(held_by.query, None)
        else:
            assert held_by.substream is not None
            self.execute("evict", held_by.query, [held_by.substream])
            self.forget(held_by.query, [held_by.substream])

    # -- batches --------------------------------------------------------------------------------------------------

    @rule(
        run=runs,
        batch=batches,
        pinned_watermark=pinned_watermarks,
        waited=waits,
        age=st.none() | st.integers(0, 40),
        output=outputs,
        tables=table_versions,
        token=tokens,
    )
    def begin(
        self,
        run: Run,
        batch: int,
        pinned_watermark: PinnedWatermark | None,
        waited: int,
        age: int | None,
        output: tuple[int | None] | None,
        tables: Sequence[TableVersion],
        token: TokenClaim | None,
    ) -> None:
        now, output, tables = self.job_now, self.told_output(output), self.told_tables(tables)
        options = BeginOptions(pinned_watermark, waited_ms=waited, input_age_ms=age, outputs=tables)
        if output is not None:
            options = replace(options, tells_output=True, output_watermark=output[0])
        begun = self.execute("begin", run, batch, options=options, token=token)
        if begun is None:
            return
        self.record_output(run, output, begun.pinned_watermark)
        key = run.query, run.query_id, batch
        if begun.replayed:
            assert begun.pinned_watermark == self.pinned_watermarks[key], (
                "a replay must get the pinned watermark of its batch"
            )
            before = self.open.get(run.query)
            if before and before[1] == batch and before[0].run_id != run.run_id:
                self.staged[run.query] = set()
                self.open[run.query] = run, batch, begun.pinned_watermark
            return
        if run.query in self.open:
            self.record_commit(run.query, now)
        if self.checkpoint.get(run.query) != run.query_id:  # the pinned watermarks of another checkpoint are forgotten
            self.pinned_watermarks = {kept: at for kept, at in self.pinned_watermarks.items() if kept[0] != run.query}
        known = self.pinned_watermarks.get(key, begun.pinned_watermark)
        assert known == begun.pinned_watermark, f"the pinned watermark of the batch was {known}"
        self.pinned_watermarks[key] = begun.pinned_watermark
        self.open[run.query] = run, batch, begun.pinned_watermark
        self.staged[run.query] = set()
        self.input_settled_ms[run.query] = None if age is None else self.twin.answers[-1].now_ms - age
        self.checkpoint[run.query] = run.query_id

    def record_commit(self, query: str, now: int, caught_up: CaughtUp | None = None) -> None:
        """Record the commit of a batch: its staged substreams, and the time up to which its input was complete."""
        for name in self.staged.pop(query, set()):
            self.last_seen_ms[query, name] = now
        if caught_up is None:
            self.record_evidence(query, self.input_settled_ms[query] or 0, None)
        else:
            self.record_evidence(query, self.twin.answers[-1].now_ms - caught_up.age_ms, caught_up.substreams)
        del self.open[query]

    def record_output(self, run: Run, output: tuple[int | None] | None, at_most: int | None) -> None:
        """Record the output watermark that the client of a query tells with a begin; None if it does not tell it.

        The results of the batch are not yet written, so it is at most the pinned watermark.
        """
        query_id, before = self.outputs.pop(run.query, (run.query_id, None))
        if output is not None:
            told = highest(before if query_id == run.query_id else None, output[0])
            self.outputs[run.query] = run.query_id, at_most if above(told, at_most) else told

    def told_output(self, output: tuple[int | None] | None) -> tuple[int | None] | None:
        """Return the output watermark that a client tells, if both versions know it."""
        return output

    def told_tables(self, tables: Sequence[TableVersion]) -> Sequence[TableVersion]:
        """Return the versions of tables that a client tells, if both versions know them."""
        return tables

    def understood(self, argument: Argument) -> Argument | None:
        """Return a new argument, if the serving version knows it."""
        return argument

    def compared(self, twin: Twin) -> Twin:
        """Return a twin that compares what the serving version shows."""
        return twin

    def understood_batch(self, after: int | None) -> int | None:
        """Return the argument ``after_batch`` of a heartbeat, if the version that serves it follows the same rule."""
        return after

    def record_evidence(self, query: str, until: int, caught_up: Collection[str] | None) -> None:
        """Record the time up to which all input of some substreams (None: of all) was read."""
        for of in [(query, None)] if caught_up is None else [(query, name) for name in caught_up]:
            self.evidence_ms[of] = max(self.evidence_ms.get(of, 0), until)

    @rule(
        run=runs,
        batch=batches,
        partition=st.integers(0, 1),
        max_event_times=max_event_times,
        watermarks=marks,
        future=st.dictionaries(names, st.integers(0, 3), max_size=1),
        delays=delays,
        token=tokens,
    )
    def stage(
        self,
        run: Run,
        batch: int,
        partition: int,
        max_event_times: dict[str, int],
        watermarks: dict[str, int],
        future: dict[str, int],
        delays: Mapping[str, RowsByDelay] = NO_DELAYS,
        token: TokenClaim | None = None,
    ) -> None:
        rows = dict.fromkeys(max_event_times, partition + 1)
        effect = self.execute(
            "stage",
            run,
            batch,
            PartitionReport(partition, max_event_times, rows, watermarks, future, delays),
            token=token,
        )
        if effect is not None and effect.applied:
            self.staged[run.query] |= {*max_event_times, *watermarks}

    @rule(data=st.data(), max_event_times=max_event_times, delays=delays)
    def report_of_an_open_batch(
        self, data: st.DataObject, max_event_times: dict[str, int], delays: Mapping[str, RowsByDelay]
    ) -> None:
        if self.open:
            run, batch, _ = self.open[data.draw(st.sampled_from(sorted(self.open)))]
            self.stage(run, batch, 0, max_event_times, {}, {}, delays)

    @rule(
        run=runs,
        batch=batches,
        rows=st.dictionaries(names, counts, max_size=3),
        waited=waits,
        reported=st.sampled_from([None, None, 0, 1, 2]),
        disposition=st.sampled_from(["dropped", "diverted"]),
        hours=st.lists(st.lists(rows_of_hours, max_size=3).map(tuple), max_size=3),
        more=st.none() | st.lists(rows_of_hours, max_size=2),
        frames=rows_of_frames,
        token=tokens,
        caught_up=caught_up_names,
        caught_up_age=st.integers(0, 40),
        told=offsets,
        tables=table_versions,
    )
    def commit(
        self,
        run: Run,
        batch: int,
        rows: dict[str, RowCounts],
        waited: int,
        reported: int | None = None,
        disposition: LateDisposition = "dropped",
        hours: Sequence[tuple[RowsOfHour, ...]] = (),
        more: list[RowsOfHour] | None = None,
        frames: tuple[RowsOfHour, ...] | None = None,
        token: TokenClaim | None = None,
        caught_up: Sequence[str] | None = None,
        caught_up_age: int = 0,
        told: BatchOffsets | None = None,
        tables: Sequence[TableVersion] = (),
    ) -> None:
        now = self.job_now
        account = None
        if rows:
            attributed = tuple(hours[: len(rows)])
            # With `more`, all hours together are reported for the job, too.
            every = () if more is None else (*more, *(of_hour for of_each in attributed for of_hour in of_each))
            account = BatchAccounting(tuple(rows), tuple(rows.values()), disposition, attributed, every, frames)
        caught_up = self.understood(caught_up)
        named = None if caught_up is None else CaughtUp(caught_up, caught_up_age)
        more_arguments: dict[str, Any] = {
            "reported": reported,
            "token": token,
            "caught_up": named,
            "offsets": self.understood(told),
            "outputs": self.told_tables(tables),
        }
        effect = self.execute("commit", run, batch, account, waited_ms=waited, **more_arguments)
        if effect is not None and effect.applied:
            self.record_commit(run.query, now, named)

    @rule(
        data=st.data(),
        waited=waits,
        frames=rows_of_frames,
        caught_up=caught_up_names,
        told=offsets,
        tables=table_versions,
    )
    def commit_of_an_open_batch(
        self,
        data: st.DataObject,
        waited: int,
        frames: tuple[RowsOfHour, ...] | None,
        caught_up: Sequence[str] | None,
        told: BatchOffsets | None,
        tables: Sequence[TableVersion],
    ) -> None:
        if self.open:
            run, batch, _ = self.open[data.draw(st.sampled_from(sorted(self.open)))]
            rows = {} if frames is None else {"a": RowCounts(1, 0, 0, 0, 0)}
            self.commit(run, batch, rows, waited, frames=frames, caught_up=caught_up, told=told, tables=tables)

    @rule(
        run=runs,
        age=st.integers(-5, 20),
        waited=waits,
        after=st.none() | st.integers(0, 3),
        token=tokens,
        caught_up=caught_up_names,
        told=offsets,
        output=outputs,
        tables=table_versions,
    )
    def heartbeat(
        self,
        run: Run,
        age: int,
        waited: int,
        after: int | None,
        token: TokenClaim | None,
        caught_up: Sequence[str] | None,
        told: BatchOffsets | None,
        output: tuple[int | None] | None,
        tables: Sequence[TableVersion],
    ) -> None:
        output = self.told_output(output)
        seen, caught_up, after = self.now - age, self.understood(caught_up), self.understood_batch(after)
        more: dict[str, Any] = {"after_batch": after, "token": token, "caught_up": caught_up}
        more |= {"offsets": self.understood(told), "outputs": self.told_tables(tables)}
        if output is not None:
            more |= {"tells_output": True, "output_watermark": output[0]}
        effect = self.execute("heartbeat", run, seen, waited_ms=waited, **more)
        if effect is not None:
            # The first call makes the query. Calls on another checkpoint then tell nothing, until a batch begins there.
            checkpoint = self.checkpoint.setdefault(run.query, run.query_id)
            checkpoint, before = self.outputs.get(run.query, (checkpoint, None))
            # A query that was retired before its first call is still retired after a heartbeat.
            is_retired = self.machine.queries[run.query].retired
            if output is not None and checkpoint == run.query_id and not is_retired:
                self.outputs[run.query] = run.query_id, highest(before, output[0])
        if effect is not None and effect.applied:
            self.record_evidence(run.query, min(seen, self.twin.answers[-1].now_ms), caught_up)

    # -- reports without batches ----------------------------------------------------------------------------------

    @rule(
        max_event_times=st.dictionaries(names, times, max_size=4),
        watermarks=marks,
        gap=st.sampled_from([None, 0, 40]),
        delays=delays,
        token=tokens,
    )
    def report(
        self,
        max_event_times: dict[str, int],
        watermarks: dict[str, int],
        gap: int | None,
        delays: Mapping[str, RowsByDelay],
        token: TokenClaim | None,
    ) -> None:
        min_event_times = (
            {}
            if gap is None
            else {name: max(max_event_time - gap, -(2**53) + 1) for name, max_event_time in max_event_times.items()}
            | {name: max(watermark - gap, -(2**53) + 1) for name, watermark in watermarks.items()}
        )
        self.execute(
            "report",
            max_event_times,
            min_event_times=min_event_times,
            watermarks=watermarks,
            delays=delays,
            token=token,
        )
        if delays:  # delays count each time they are sent
            self.last = None

    # -- actions --------------------------------------------------------------------------------------------------

    @rule(
        query=st.sampled_from(["", "p", "z"]), names=some_names, max_event_times=st.one_of(st.none(), max_event_times)
    )
    def declare(self, query: str, names: list[str], max_event_times: dict[str, int] | None) -> None:
        now = self.job_now
        effect = self.execute("declare", query, names, max_event_times=max_event_times)
        if effect is not None and effect.applied:
            for name in names:
                self.last_seen_ms.setdefault((query, name), now)

    @rule(query=owners, names=some_names, action=st.sampled_from(["idle", "done", "evict"]))
    def act_on_substreams(self, query: str, names: list[str], action: str) -> None:
        self.execute(action, query, names)
        if action == "evict":
            self.forget(query, names)

    def forget(self, query: str, names: Sequence[str]) -> None:
        for name in names:
            self.last_seen_ms.pop((query, name), None)

    @rule(query=owners, watermarks=st.dictionaries(names, ordinary_times, min_size=1, max_size=2))
    def restore(self, query: str, watermarks: dict[str, int]) -> None:
        self.execute("restore", query, watermarks)

    @rule(query=st.sampled_from(["p", "q", "z"]), successor=st.sampled_from([None, "p", "q", "z"]))
    def retire(self, query: str, successor: str | None) -> None:
        if not self.can_retire(query):
            return
        effect = self.execute("retire", query, successor)
        if effect is not None and effect.applied:
            self.open.pop(query, None)
            self.staged.pop(query, None)
            self.outputs.pop(query, None)
            if successor != query:
                self.forget(query, NAMES)
            if successor is not None:
                self.forget(successor, NAMES)  # last events of substreams handed over are not tracked

    @rule(hold=st.sampled_from(["x", "y"]), at_most=ordinary_times, lasts=st.sampled_from([None, 5, 50]))
    def hold(self, hold: str, at_most: int, lasts: int | None) -> None:
        self.execute("hold", hold, at_most, duration_ms=lasts)

    @rule(
        consumer=st.sampled_from(["m", "n"]),
        owner=st.sampled_from(["o", "p"]),
        lease_ms=st.integers(1, 60),
        position=st.none() | st.builds(ConsumerPosition, st.integers(1, 3), st.integers(-1, 1), st.integers(1, 2)),
        release=st.booleans(),
    )
    def consume(
        self, consumer: str, owner: str, lease_ms: int, position: ConsumerPosition | None, release: bool
    ) -> None:
        if self.twin.knows_consumers():
            self.execute("consume", consumer, owner, lease_ms, position=position, release=release)

    @rule(consumer=st.sampled_from(["m", "n"]))
    def forget_consumer(self, consumer: str) -> None:
        if self.twin.knows_consumers():
            self.execute("forget_consumer", consumer)

    @rule(hold=st.sampled_from(["x", "y"]))
    def release(self, hold: str) -> None:
        self.execute("release", hold)

    @rule(config=configs)
    def change(self, config: JobConfig) -> None:
        config = self.declared(config)
        self.config, self.last = config, None
        assert self.twin.change(config)

    @rule(
        config=configs, any_revision=st.booleans(), behind=st.integers(0, 1), epoch=st.sampled_from([None, "", "lost"])
    )
    def change_a_version(self, config: JobConfig, any_revision: bool, behind: int, epoch: str | None) -> None:
        """A change of a version is refused if the revision or the state epoch is not the current one."""
        config = self.declared(config)
        is_current = (any_revision or not behind) and epoch != "lost"
        epoch = self.machine.state_epoch if epoch == "" else epoch
        version = ConfigVersion(epoch, None if any_revision else self.twin.revision - behind)
        assert self.twin.change(config, version) == is_current
        if is_current:
            self.config, self.last = config, None

    def declared(self, config: JobConfig) -> JobConfig:
        return config

    def can_retire(self, query: str) -> bool:
        return True

    @rule(really=seldom, up_to=st.one_of(st.none(), times))
    def complete(self, really: bool, up_to: int | None) -> None:
        if really:
            self.execute("complete", up_to=up_to)

    @rule()
    def reopen(self) -> None:
        self.execute("reopen")

    @rule(really=seldom)
    def reset(self, really: bool) -> None:
        if really:
            self.last = None
            answer = self.twin.driver(self.store.actions.reset(self.job, now_ms=self.now))
            expected = self.machine.reset(self.now, answer.state_epoch)
            assert answer == expected
            self.twin.compare_records()
            self.twin.answers, self.checked = [answer], 1
            self.open, self.staged, self.pinned_watermarks, self.evidence_ms, self.last_seen_ms = {}, {}, {}, {}, {}
            self.outputs, self.checkpoint = {}, {}

    # -- invariants -----------------------------------------------------------------------------------------------

    @rule()
    def repeated_commands_change_nothing(self) -> None:
        """A client repeats a call whose answer was lost."""
        if self.last is None:
            return
        answer = self.twin.answers[-1]
        before = self.twin.compare_tables()
        clock_stood = self.now <= answer.now_ms
        again = self.last()
        if again is None or not clock_stood:
            return
        assert self.twin.answers[-1] == answer or isinstance(again, Effect)
        after = self.twin.compare_tables()
        uncounted = {"future_rows": 0, "tokens_ignored": 0, "limits": {}}
        assert [replace(row, future_rows=0) for row in after[0]] == [replace(row, future_rows=0) for row in before[0]]
        assert after[1] == before[1]
        assert replace(after[2], **uncounted) == replace(before[2], **uncounted)

    @invariant()
    def both_sides_have_the_same_tables(self) -> None:
        if hasattr(self, "twin"):
            self.twin.compare_tables()

    @invariant()
    def nothing_goes_back(self) -> None:
        """Monotone: W, C and the job's processing time never go back."""
        for before, after in zip(self.answers[-2:], self.answers[-1:], strict=False):
            assert not above(before.watermark, after.watermark)
            assert not above(before.coalesced_watermark, after.coalesced_watermark)
            assert not above(after.watermark, after.coalesced_watermark)
            if self.twin.compares_written:
                assert not above(before.written_watermark, after.written_watermark)
                assert not above(after.written_watermark, after.watermark)
            assert after.now_ms >= before.now_ms

    @property
    def answers(self) -> list[Any]:
        return self.twin.answers if hasattr(self, "twin") else []

    @invariant()
    def no_open_batch_is_passed(self) -> None:
        """Committed: W stays at the pinned watermark until the batch commits, is retired, or was held too long."""
        if len(self.answers) <= max(self.checked, 1):
            return
        self.checked = len(self.answers)
        restored = any(record.kind == "watermark_restored" for record in self.twin.new_records)
        released = {r.details["query"] for r in self.twin.machine.history if r.kind == "batch_released"}
        for query, (_, _, pinned_watermark) in self.open.items():
            moved = above(self.answers[-1].watermark, self.answers[-2].watermark)
            if moved and not restored and query not in released:
                assert not above(self.answers[-1].watermark, pinned_watermark), (
                    f"W passed the pinned watermark of the open batch of {query}"
                )

    @invariant()
    def no_unwritten_result_is_passed(self) -> None:
        """Written: the written watermark stays below open batches and below what queries tell, unless retired."""
        if len(self.answers) < 2 or not self.twin.compares_written:
            return
        if self.answers[-1].written_watermark == self.answers[-2].written_watermark:
            return
        written = self.answers[-1].written_watermark
        for query, (_, _, pinned_watermark) in self.open.items():
            assert not above(written, pinned_watermark), f"the open batch of {query} is not written"
        for query, (_, output) in self.outputs.items():
            assert not above(written, output), f"{query} has written its results up to {output} only"

    @invariant()
    def no_substream_is_idle_without_evidence(self) -> None:
        """A substream becomes idle only if its query has observed the silence."""
        if not hasattr(self, "twin"):
            return
        for record in self.twin.new_records:
            if record.kind != "idle" or record.details["limit"] != "idle_timeout_ms":
                continue
            query = record.details.get("query", "")
            for member in record.details["substreams"]:
                name = member.partition("/")[2]
                last_seen_ms = self.last_seen_ms.get((query, name))
                if query and last_seen_ms is not None:
                    assert self.config.idle_timeout_ms is not None
                    evidence_ms = max(self.evidence_ms.get((query, of), 0) for of in (None, name))
                    assert evidence_ms - last_seen_ms >= self.config.idle_timeout_ms


class UpgradedTwins(Twins):
    """Twins of a job that the previous version creates. Both versions then serve it by turns."""

    is_upgraded = False

    def __init__(self) -> None:
        super().__init__()
        type(self).is_upgraded = False

    def declared(self, config: JobConfig) -> JobConfig:
        """The previous version has no frames, which it neither records nor completes, and no limit on skew.

        Under retention, it is not due after an eviction that empties the history.
        """
        return replace(config, frames=None, arrival_target=None, max_retention_ms=None, max_skew_ms=None)

    def can_retire(self, query: str) -> bool:
        """The previous version refuses to retire an expected query that the job does not know yet."""
        return self.is_upgraded or query not in self.machine.config.expected_queries

    @rule()
    def serve_by_the_other_version(self) -> None:
        type(self).is_upgraded = not self.is_upgraded
        self.last = None  # the other version may have given another answer

    def understood(self, argument: Argument) -> Argument | None:
        return argument if self.is_upgraded else None

    def told_output(self, output: tuple[int | None] | None) -> tuple[int | None] | None:
        return None

    def told_tables(self, tables: Sequence[TableVersion]) -> Sequence[TableVersion]:
        return ()

    def compared(self, twin: Twin) -> Twin:
        twin.shows_offsets = twin.knows_consumers = lambda: type(self).is_upgraded
        twin.compares_written = twin.compares_frames = twin.compares_skew = False
        return twin

    def understood_batch(self, after: int | None) -> int | None:
        # The previous version ignores a heartbeat about the batch before an open one.
        return after if self.is_upgraded else None


def check(twins: type[Twins], examples: int) -> None:
    run_state_machine_as_test(
        twins,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.parametrize("examples", [40, pytest.param(250, marks=pytest.mark.fuzz)])
def test_scripts_and_domain_agree_on_every_reply(make_driver: Callable[[], Driver], examples: int) -> None:
    Twins.make_driver = staticmethod(make_driver)
    check(Twins, examples)


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.fuzz)])
def test_a_command_in_many_steps_has_the_same_result(
    make_driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """A command of a large job runs in several calls. Each change must still have the result of one call."""
    in_steps = library_with(monkeypatch, STEP=1, ENTRIES=1, PIECE=1)
    for module in (functions, servers):
        monkeypatch.setattr(module, "library", lambda: in_steps)
    monkeypatch.setattr(functions, "MAX_PAUSE_S", 0)
    Twins.make_driver = staticmethod(make_driver)
    check(Twins, examples)


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.fuzz)])
def test_two_versions_agree_on_the_state_of_a_job(
    make_driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """During a rolling upgrade, each version reads and writes the state of the other one."""
    UpgradedTwins.make_driver = staticmethod(make_driver)
    for module in (functions, servers):
        monkeypatch.setattr(module, "library", lambda: library() if UpgradedTwins.is_upgraded else previous_library())
    check(UpgradedTwins, examples)
