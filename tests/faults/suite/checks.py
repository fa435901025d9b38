"""The checks of a history: what no order of calls and no fault may show to any client."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tests.faults.suite.history import Call
from tests.faults.suite.plan import LAG_MS, JobPlan
from tests.faults.suite.world import Loss

SLACK_S = 0.5
"""Time between an event in the store and its record in a process of a loaded machine."""
LOWEST = -(2**53)


@dataclass(frozen=True)
class Violation:
    """A broken guarantee, with the calls that show it."""

    guarantee: str
    text: str
    calls: Sequence[Call] = field(default=())


class Losses:
    """The faults of a run that lost acknowledged calls, in the order of their times.

    Args:
        losses: The faults.
        other_version_from: Time from which a replica runs the previous version, which keeps no written watermark.
    """

    def __init__(self, losses: Sequence[Loss], other_version_from: float = float("inf")) -> None:
        self.losses, self._other_version_from = losses, other_version_from
        self._starts, self._ends = [loss.start for loss in losses], [loss.end for loss in losses]

    def shows_written(self, call: Call) -> bool:
        """Return whether all replicas kept the written watermark until the answer to a call."""
        return call.received < self._other_version_from

    def segment(self, call: Call) -> int | None:
        """Return the number of losses before a call that was sent and answered between two losses, else None."""
        before = bisect_left(self._ends, call.sent)
        return before if before == bisect_left(self._starts, call.received) else None

    def restorable(self, calls: Sequence[Call], segment: int | None) -> int:
        """Return the highest watermark in answers before a segment, which tokens may restore in it."""
        if not segment:
            return LOWEST
        before = (call.answer["watermark"] for call in calls if call.sent < self._ends[segment - 1])
        return max(map(number, before), default=LOWEST)

    def may_lack(self, written: Call, at: float) -> bool:
        """Return whether the store may lack an answered call at a later time."""
        return any(
            written.received > loss.start - loss.window_s - SLACK_S and written.sent < loss.end
            for loss in self.losses
            if loss.start < at
        )


def answers(calls: Iterable[Call]) -> list[Call]:
    """Return the calls whose answers have a watermark, in the order in which the answers arrived."""
    return sorted((c for c in calls if c.succeeded and "watermark" in c.answer), key=lambda call: call.received)


def number(watermark: int | None) -> int:
    """Return a watermark as a number."""
    return LOWEST if watermark is None else watermark


def check_all(job: JobPlan, calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Yield the violations of all guarantees that the calls of a job show."""
    yield from check_monotone(calls, losses)
    yield from check_tokens(calls)
    yield from check_committed(calls, losses)
    yield from check_written(calls, losses)
    yield from check_replay(calls, losses)
    yield from check_safe(job, calls)
    yield from check_durable(calls, losses)


def check_monotone(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that C and W do not go back from an answer to a call that is sent later, unless a loss lies between."""
    by_segment: dict[int, list[Call]] = defaultdict(list)
    for call in answers(calls):
        segment = losses.segment(call)
        if segment is not None:
            by_segment[segment].append(call)
    for of_segment in by_segment.values():
        for name in ("watermark", "coalesced_watermark"):
            yield from _check_rising(name, of_segment)
        yield from _check_rising("written_watermark", [call for call in of_segment if losses.shows_written(call)])


def _check_rising(name: str, received: Sequence[Call]) -> Iterator[Violation]:
    highest: Call | None = None
    earlier = iter(received)
    following = next(earlier, None)
    for call in sorted(received, key=lambda call: call.sent):
        while following is not None and following.received < call.sent:
            if highest is None or number(following.answer[name]) > number(highest.answer[name]):
                highest = following
            following = next(earlier, None)
        if highest is not None and number(call.answer[name]) < number(highest.answer[name]):
            yield Violation(
                "monotone", f"{name} went back from {highest.answer[name]} to {call.answer[name]}", (highest, call)
            )


def check_tokens(calls: Sequence[Call]) -> Iterator[Violation]:
    """Check that no answer is below the watermark that its call has proven, and that W does not pass C."""
    for call in answers(calls):
        watermark, claim = number(call.answer["watermark"]), call.claim
        if claim is not None and claim[0] == call.answer["incarnation"] and watermark < claim[1]:
            yield Violation("monotone", f"W = {watermark} is below the {claim[1]} of the token", (call,))
        if watermark > number(call.answer["coalesced_watermark"]):
            yield Violation("monotone", "W is above C", (call,))


def check_committed(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that W does not pass the pinned watermark of an open batch.

    After a loss, tokens restore the watermark that the job had before it, also above the pinned watermark of a batch
    that began before its query returned the latest token. A batch that was processed without the coordinator begins
    with the pinned watermark of an earlier one, which W may have passed.
    """
    by_sent = sorted(answers(calls), key=lambda call: call.sent)
    times = [call.sent for call in by_sent]
    restorable: dict[int | None, int] = {}
    for begun, until in _open_batches(calls):
        segment = losses.segment(begun)
        if segment not in restorable:
            restorable[segment] = losses.restorable(by_sent, segment)
        allowed = max(number(begun.answer["pinned_watermark"]), restorable[segment])
        if (
            "pinned_watermark" in begun.body
        ):  # a batch of the backlog: W may have passed it before, but moves no further
            allowed = max(allowed, number(begun.answer["watermark"]))
        for call in by_sent[bisect_right(times, begun.received) : bisect_left(times, until)]:
            is_judged = call.received < until and segment is not None and losses.segment(call) == segment
            if is_judged and number(call.answer["watermark"]) > allowed:
                yield Violation("committed", "W is above the pinned watermark of an open batch", (begun, call))
                break


def check_written(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that the written watermark does not pass W, nor what a query with windows has told.

    A query holds it from its first begin on. Before, also after a loss, it may have passed the query.
    """
    by_sent = sorted(filter(losses.shows_written, answers(calls)), key=lambda call: call.sent)
    for call in by_sent:
        if number(call.answer["written_watermark"]) > number(call.answer["watermark"]):
            yield Violation("written", "the written watermark is above W", (call,))
    told: dict[str | None, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.sent):
        if "output_watermark" in call.body:
            told[call.query].append(call)
    for tells in told.values():
        first: dict[int, Call] = {}
        for begun in sorted((c for c in tells if c.succeeded and c.kind == "begin"), key=lambda call: call.received):
            segment = losses.segment(begun)
            if segment is not None:
                first.setdefault(segment, begun)
        sent = [call.sent for call in tells]
        highest = list(accumulate((number(call.body["output_watermark"]) for call in tells), max))
        for call in by_sent:
            begun_first = first.get(-1 if (segment := losses.segment(call)) is None else segment)
            if begun_first is None or call.sent < begun_first.received:
                continue
            before = bisect_left(sent, call.received)
            allowed = max(highest[before - 1], number(begun_first.answer["written_watermark"]))
            if number(call.answer["written_watermark"]) > allowed:
                yield Violation("written", f"the query has written up to {allowed} only", (begun_first, call))
                break


def _open_batches(calls: Sequence[Call]) -> Iterator[tuple[Call, float]]:
    """Yield the first acknowledged begin of each batch, and the time at which the batch may have ended.

    A batch ends by its commit, or by the begin of a later batch.
    """
    first: dict[tuple[str | None, int], Call] = {}
    for call in answers(calls):
        if call.kind == "begin" and call.batch is not None:
            first.setdefault((call.query, call.batch), call)
    ends: dict[tuple[str | None, int], float] = {}
    for call in calls:
        if call.kind in ("begin", "commit") and call.batch is not None:
            ended = (call.query, call.batch - (call.kind == "begin"))
            ends[ended] = min(call.sent, ends.get(ended, call.sent))
    for (query, batch), begun in first.items():
        yield begun, ends.get((query, batch), float("inf"))


def check_replay(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that each batch has one pinned watermark in all answers on which a run has acted."""
    acted = {(call.query, call.batch, call.run) for call in calls if call.kind in ("stage", "commit")}
    used: dict[tuple[str | None, int | None], Call] = {}
    known: dict[tuple[str | None, int | None, int], Call] = {}
    for call in answers(calls):
        if call.kind != "begin":
            continue
        segment = losses.segment(call)
        before = [] if segment is None else [known.setdefault((call.query, call.batch, segment), call)]
        if (call.query, call.batch, call.run) in acted:
            before.append(used.setdefault((call.query, call.batch), call))
        for other in before:
            if other.answer["pinned_watermark"] != call.answer["pinned_watermark"]:
                yield Violation("replay-exact", "a batch has two pinned watermarks", (other, call))
                break


def check_safe(job: JobPlan, calls: Sequence[Call]) -> Iterator[Violation]:
    """Check that W is at most the lowest max event time of all substreams, minus the lag.

    After a loss of everything, the check begins when all substreams are declared again, and allows the watermark that
    the job had until then.
    """
    floors = {epoch: _floor(job, calls, epoch) for epoch in {call.answer["state_epoch"] for call in answers(calls)}}
    reports = iter(sorted((call for call in calls if call.event_times()), key=lambda call: call.sent))
    following = next(reports, None)
    highest = dict.fromkeys(job.substreams(), LOWEST)
    for call in answers(calls):
        while following is not None and following.sent < call.received:
            for name, at in following.event_times().items():
                key = following.query, name
                highest[key] = max(at, highest.get(key, LOWEST))
            following = next(reports, None)
        floor = floors[call.answer["state_epoch"]]
        if floor is None or call.sent < floor[0]:
            continue
        allowed = max(floor[1], min(highest.values()) - LAG_MS)
        if number(call.answer["watermark"]) > allowed:
            yield Violation("safe", f"W = {call.answer['watermark']}, but at most {allowed} is safe", (call,))


def _floor(job: JobPlan, calls: Sequence[Call], epoch: str) -> tuple[float, int] | None:
    """Return the time from which all substreams are known in an epoch, and the highest watermark before."""
    missing, since = set(job.substreams()), float("-inf")
    declares = ("declare", "report", "commit")
    for call in answers(calls):
        if call.answer["state_epoch"] == epoch and call.kind in declares and missing:
            missing -= set(job.substreams()) & _named_by(job, call)
            since = call.received
    if missing:
        return None
    seen = answers(calls)
    first_after = next((call.received for call in seen if call.sent > since), since)
    return since, max((number(c.answer["watermark"]) for c in seen if c.received <= first_after), default=LOWEST)


def _named_by(job: JobPlan, call: Call) -> set[tuple[str | None, str]]:
    """Return the substreams that a call makes known."""
    names = call.body.get("substreams") or []
    if call.kind == "commit" and call.query is not None:
        names = job.writers[call.query]
    return {(call.query, name) for name in names}


def check_durable(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that the table of substreams has each acknowledged report, and that no acknowledged commit is lost."""
    reports = [call for call in answers(calls) if call.kind == "report"]
    kept: dict[str, tuple[int, Call]] = {}
    pending = iter(reports)
    following = next(pending, None)
    lost = 0
    for read in sorted((c for c in calls if c.kind == "substreams" and c.succeeded), key=lambda call: call.sent):
        while following is not None and following.received < read.sent:
            for name, at in following.event_times().items():
                if name not in kept or at > kept[name][0]:
                    kept[name] = at, following
            following = next(pending, None)
        begun = sum(loss.start < read.received for loss in losses.losses)
        if begun > lost:
            lost, kept = begun, _survivors(reports, losses, read)
        rows = {row["substream"]: row["max_event_time"] for row in read.answer["substreams"] if not row["query"]}
        for name, (at, report) in kept.items():
            if number(rows.get(name)) < at:
                yield Violation("durable", f"{name} is at {rows.get(name)}, but {at} was acknowledged", (report, read))
    yield from _check_commits(calls, losses)


def _survivors(reports: Sequence[Call], losses: Losses, read: Call) -> dict[str, tuple[int, Call]]:
    """Return the highest event time of each substream among the reports that the store must still have."""
    kept: dict[str, tuple[int, Call]] = {}
    for report in reports:
        if report.received < read.sent and not losses.may_lack(report, read.received):
            for name, at in report.event_times().items():
                if name not in kept or at > kept[name][0]:
                    kept[name] = at, report
    return kept


def _check_commits(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    committed: dict[str | None, list[Call]] = defaultdict(list)
    for call in answers(calls):
        if call.kind == "commit":
            committed[call.query].append(call)
        elif call.kind == "begin":
            known = call.answer["previous_batch_id"]
            for commit in reversed(committed[call.query]):
                if commit.received < call.sent and not losses.may_lack(commit, call.received):
                    assert commit.batch is not None
                    if (
                        known is None
                        or known < commit.batch
                        or (known == commit.batch and call.answer["previous_open"])
                    ):
                        yield Violation("durable", f"the commit of batch {commit.batch} is lost", (commit, call))
                    break
