"""The checks of frames: each generation has one event and one content, and no frame is finished early."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.faults.suite.accounting import may_be_lost
from tests.faults.suite.checks import Losses, Violation, answers, number
from tests.faults.suite.history import Call
from tests.faults.suite.plan import FRAME_MS

Content = tuple[Mapping[str, int], Sequence[Mapping[str, str]]]
"""The rows and the tables of a generation."""


def check_frames(calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check the frames in all answers: those of one answer, and those of answers between the same losses."""
    reads = [call for call in answers(calls) if call.kind == "frames" and losses.shows_written(call)]
    known: dict[tuple[int | None, int, int], tuple[Content, Call]] = {}
    told = {(call.query, each["version"]) for call in calls for each in call.body.get("outputs", ())}
    for call in reads:
        segment = losses.segment(call)
        for frame in call.answer["frames"]:
            yield from _check_frame(frame, call)
            for generation in frame["generations"] if segment is not None else ():
                key = segment, frame["start"], generation["generation"]
                content = generation["rows"], generation["outputs"]
                before, first = known.setdefault(key, (content, call))
                if before != content:
                    text = f"generation {key[2]} of the frame at {key[1]} has two contents"
                    yield Violation("frames", text, (first, call))
                for each in generation["outputs"]:
                    if (each["query"], each["version"]) not in told:
                        text = f"the frame at {key[1]} has version {each['version']} of the table of {each['query']}"
                        yield Violation("frames", f"{text}, which no call has told", (call,))
    yield from _check_progress(reads, losses)


def _check_frame(frame: Mapping[str, Any], call: Call) -> Iterator[Violation]:
    """Check that a frame is not finished early, and that its generations add up to its rows."""
    if frame["state"] == "open":
        return
    if number(call.answer["written_watermark"]) < frame["end"]:
        yield Violation("frames", f"the frame at {frame['start']} is finished, but not written", (call,))
    sums, numbers = Counter[str](), [each["generation"] for each in frame["generations"]]
    for rows in (*(each["rows"] for each in frame["generations"]), frame["changes"] or {}):
        sums.update(rows)
    if sums != Counter(frame["rows"]):
        yield Violation("frames", f"the generations of the frame at {frame['start']} do not add up", (call,))
    # After a restored watermark, the next number is higher by a thousand or more.
    if numbers != sorted(set(numbers)) or frame["generation"] != numbers[-1]:
        yield Violation("frames", f"the frame at {frame['start']} has the generations {numbers}", (call,))


def _check_progress(reads: Sequence[Call], losses: Losses) -> Iterator[Violation]:
    """Check that no generation of a frame is gone in an answer to a call that is sent later."""
    by_segment: dict[int, list[Call]] = defaultdict(list)
    for call in reads:
        segment = losses.segment(call)
        if segment is not None:
            by_segment[segment].append(call)
    for of_segment in by_segment.values():
        latest: dict[int, tuple[int, Call]] = {}
        received = iter(of_segment)
        following = next(received, None)
        for call in sorted(of_segment, key=lambda call: call.sent):
            while following is not None and following.received < call.sent:
                for each in following.answer["frames"]:
                    if (each["generation"] or 0) > latest.get(each["start"], (0, following))[0]:
                        latest[each["start"]] = each["generation"], following
                following = next(received, None)
            for frame in call.answer["frames"]:
                before, seen = latest.get(frame["start"], (0, call))
                if (frame["generation"] or 0) < before:
                    text = f"generation {before} of the frame at {frame['start']} is gone"
                    yield Violation("frames", text, (seen, call))


def check_frame_rows(
    calls: Sequence[Call], losses: Losses, frames: Iterable[Mapping[str, Any]], at: float
) -> Iterator[Violation]:
    """Check the rows of frames, read at a time after all calls have ended.

    The counts lie between those of the batches that the store must have, and those of all batches.
    """
    commits: dict[tuple[str | None, int | None], list[Call]] = defaultdict(list)
    for call in sorted((call for call in calls if call.kind == "commit"), key=lambda call: call.sent):
        if (call.body.get("rows") or {}).get("frames"):
            commits[call.query, call.batch].append(call)
    least, most = Counter[int](), Counter[int]()
    for attempts in commits.values():
        counted = Counter[int]()
        for time, rows, *_ in attempts[0].body["rows"]["frames"]:
            counted[time // FRAME_MS * FRAME_MS] += rows
        most.update(counted)
        done = next((call for call in attempts if call.succeeded), None)
        # A batch whose other attempts tell no frames may count by one of these.
        is_told = all(
            call in attempts
            for call in calls
            if call.kind == "commit" and (call.query, call.batch) == (attempts[0].query, attempts[0].batch)
        )
        # The previous version of the service does not count by frame.
        is_told = is_told and done is not None and losses.shows_written(done)
        if is_told and done is not None and not may_be_lost(attempts[0], done, losses, at):
            least.update(counted)
    shown = [*frames]
    first = min((frame["start"] for frame in shown), default=None)
    for start in least.keys() - {frame["start"] for frame in shown}:
        if first is None or start >= first:
            yield Violation("frames", f"no frame starts at {start}: expected {least[start]} rows or more")
    for frame in shown:
        start, rows = frame["start"], sum(frame["rows"].values())
        if not least[start] <= rows <= most[start]:
            text = f"the frame at {start} has {rows} rows: expected {least[start]} to {most[start]}"
            yield Violation("frames", text)


def check_events(events: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Check that the history has one event for each generation of a frame, earlier generations first."""
    # Frames with rows that became uncounted after the record have an event of their own, with the same bounds.
    names = ("start", "end", "generation", "state", "count", "empty", "reason")
    told = Counter(tuple(event.get(name) for name in names) for event in events)
    for key, times in told.items():
        if times > 1:
            yield Violation("frames", f"the history has the event {key} {times} times")
    latest: dict[int, int] = {}
    for event in events:
        if event["count"] == 1 and event["generation"] < latest.get(event["start"], 0):
            yield Violation("frames", f"a generation of the frame at {event['start']} has its event after a later one")
        if event["count"] == 1:
            latest[event["start"]] = event["generation"]
