"""Sentences about jobs, for the command line and the page.

A sentence is a list of fragments. Times, durations and names are separate fragments, so that the command line and the
page can format them differently.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.domain.config import LIMITS
from tidegate.domain.history import MOVEMENTS, NAMES_KEPT, Kind
from tidegate.domain.job import COUNTED_STATES
from tidegate.domain.views import is_held
from tidegate.times import doubt_about, format_duration, format_time

SILENT_MS = 5_000
"""Time without events after which a sentence calls a substream silent."""

HOLDER_REASONS = {
    "slow": "lowest watermark of the active substreams",
    "never_reported": "no events yet",
    "blocked": "silent, and its query has not confirmed that it has no data",
    "missing_query": "expected query without substreams",
    "open_batch": "open batch",
    "hold": "hold by an operator",
}

KIND_NAMES: Mapping[Kind, str] = {
    Kind.CREATED: "created",
    Kind.CONFIG: "configuration",
    Kind.EMISSION: "emission",
    Kind.COALESCED_WATERMARK: "movement of C",
    Kind.WRITTEN: "results written",
    Kind.IDLE: "idle",
    Kind.ACTIVE: "active",
    Kind.ALL_IDLE: "all idle",
    Kind.NOT_ALL_IDLE: "not all idle",
    Kind.BATCH_RELEASED: "batch released",
    Kind.JOINED: "query joined",
    Kind.FENCED: "run fenced",
    Kind.FUTURE: "future event times",
    Kind.RELEARNING: "lag learned again",
    Kind.OFFSETS_SKIPPED: "offsets skipped",
    Kind.OFFSETS_RESTARTED: "offsets restarted",
    Kind.RESTARTED: "substreams restarted",
    Kind.ENDED: "substreams ended",
    Kind.WATERMARK_RESTORED: "watermark restored",
    Kind.UNATTENDED: "unattended time",
    Kind.HOLD_EXPIRED: "hold expired",
    Kind.FRAME: "frame",
    Kind.FRAMES: "frames declared",
    Kind.ACTION: "action",
}

FRAME_STATES = {
    "open": "open",
    "complete": "complete",
    "complete_with_exclusions": "complete with exclusions",
    "empty": "empty",
}

FRAME_REASONS = {
    "rows": "later rows",
    "reset": "the job was reset",
    "config": "the frames changed",
    "watermark_restored": "a token restored the watermark",
}

ROWS_OF_FRAME = ("on_time", "updated", "dropped", "diverted")

HOLDERS_NAMED = 2
"""Number of holders that the description of a run of movements names."""

FOR_EVER = frozenset({"evict", "retire", "hand_over", "offsets_skipped", "offsets_restarted"})
"""Reasons of exclusions that nothing removes."""

EFFECTS = LIMITS | {"expires_ms": "the hold expires"}

CONFIRMATION = "its query confirms that it has no data"


@dataclass(frozen=True, slots=True)
class Time:
    """An event time or a processing time."""

    ms: int


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The duration since a processing time."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class Remaining:
    """The duration until a processing time."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name or text that a user chose."""

    text: str


Fragment = str | Time | Elapsed | Remaining | Name


def plain_text(fragments: Iterable[Fragment], now_ms: int) -> str:
    """Return a sentence as text, with times in UTC."""
    texts = []
    for fragment in fragments:
        match fragment:
            case Time(ms):
                texts.append(format_time(ms))
            case Elapsed(since_ms):
                texts.append(format_duration(now_ms - since_ms))
            case Remaining(until_ms):
                texts.append(format_duration(until_ms - now_ms))
            case Name(text):
                texts.append(text)
            case _:
                texts.append(fragment)
    return "".join(texts)


def status_sentence(job: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about the watermark of a job and its holder.

    Args:
        job: Members of a ``WatermarkState``. With the members of an ``Explanation``, the sentence includes the next
            deadline, or the next step of the throttle. With the members of a ``JobStatus``, the sentence includes the
            reason of a hold, and whether all substreams are idle.
    """
    watermark, held_by, now_ms = job["watermark"], job["held_by"], job["now_ms"]
    if job["complete"]:
        end: list[Fragment] = [] if watermark is None else [" at ", Time(watermark)]
        return ["Complete: the input has ended", *end, "."]
    if held_by is None:
        return _not_held(job)
    start = _start(watermark, held_by, now_ms)
    deadline = _next_deadline(job.get("holders"), now_ms)
    name = [*holder(held_by), *_reason(held_by, job.get("holds", ()))]
    return [*start, *name, *_explanation(held_by, now_ms, has_deadline=bool(deadline)), *deadline, "."]


def unit_hint(job: Mapping[str, Any]) -> str | None:
    """Return a hint if the event times of a job are unlikely to be in milliseconds; None otherwise.

    Args:
        job: Members of a ``JobStatus``. Without ``max_future_skew_ms``, event times can have any unit.
    """
    highest, max_future_skew_ms = job["max_event_time"], job["config"]["max_future_skew_ms"]
    if highest is None or max_future_skew_ms is None or doubt_about(highest) is None:
        return None
    return (
        "All event times are early in 1970, as seconds would be. Check that they are in milliseconds. If the whole job "
        "has another unit, set max_future_skew_ms to null."
    )


def holder(held_by: Mapping[str, Any]) -> list[Fragment]:
    """Return the name of a holder."""
    match held_by["reason"]:
        case "open_batch":
            return [f"batch {held_by['batch_id']} of ", Name(held_by["query"])]
        case "missing_query":
            return ["the query ", Name(held_by["query"])]
        case "hold":
            return ["the hold ", Name(held_by["hold"])]
        case _:
            return _substream(held_by)


def holder_over_time(held_by: Mapping[str, Any]) -> list[Fragment]:
    """Return the name of a holder over some time. All batches of a query have one name, because each is short."""
    if held_by["reason"] == "open_batch":
        return ["open batches of ", Name(held_by["query"])]
    return holder(held_by)


def record_details(record: Mapping[str, Any]) -> list[Fragment]:
    """Return the details of a history record, without its time and kind."""
    if record["kind"] == Kind.FRAME:
        return _joined(_frame_details(record))
    if record["kind"] == Kind.FRAMES:
        return _joined(_declaration_details(record))
    parts = _movement_details(record) if record["kind"] in MOVEMENTS else _event_details(record)
    if record.get("actor"):
        parts.append(["by ", Name(record["actor"])])
    if record.get("reason"):
        parts.append(["(", Name(record["reason"]), ")"])
    return _joined(parts)


def written_sentence(job: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about a written watermark that a query holds below the watermark."""
    written = job["written_watermark"]
    first: list[Fragment] = (
        ["No results are written yet"] if written is None else ["Results are written up to ", Time(written)]
    )
    return [
        *first,
        ": query ",
        Name(job["written_held_by"]),
        " has not written its own up to ",
        Time(job["watermark"]),
        ".",
    ]


def frame_sentence(frame: Mapping[str, Any], written_watermark: int | None) -> list[Fragment]:
    """Return a sentence about the state and the rows of a frame.

    Args:
        frame: Members of a ``FrameStatus``.
        written_watermark: Written watermark of the job.
    """
    rows, prediction = frame["rows"], frame.get("prediction")  # an earlier coordinator predicts nothing
    counts = [f"{rows[name]:,} {name.replace('_', ' ')}" for name in ROWS_OF_FRAME if rows[name]]
    more = [f"generation {frame['generation']}"] if frame["generation"] is not None and frame["generation"] > 1 else []
    known = [*more, *(["at least " + counts[0], *counts[1:]] if counts and frame["uncounted"] else counts)]
    start: list[Fragment] = ["The frame from ", Time(frame["start"]), " to ", Time(frame["end"]), " is "]
    said: list[Fragment] = [*start, FRAME_STATES[frame["state"]], *([f": {', '.join(known)}"] if known else []), "."]
    is_written = written_watermark is not None and written_watermark >= frame["end"]
    if frame["state"] == "open" and is_written and frame["exclusions"]:
        excluded = "; ".join(map(exclusion_text, frame["exclusions"]))
        said += [" It has no row, but was read without ", Name(excluded)]
        if any(each["reason"] in FOR_EVER for each in frame["exclusions"]):
            said.append(", so that nothing proves that it is empty.")
        else:
            said.append(", and is open until each of these has passed its end, or is known to have no data.")
    return [*said, *([" ", *prediction_sentence(prediction)] if prediction else [])]


def prediction_sentence(prediction: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about when an open frame will be complete."""
    expected_ms, latest_ms, frames = (prediction[name] for name in ("expected_ms", "latest_ms", "frames"))
    pace = " at the present pace of the watermark" if prediction["basis"] == "pace" else ""
    if expected_ms is None:
        expected: list[Fragment] = ["No time is expected, because the watermark stands"]
    else:
        expected = ["Expected ", Time(expected_ms), pace]
    if latest_ms is None:
        return [*expected, "."]
    if prediction["overdue"]:
        known = f": 95 of 100 such frames were complete by then (learned from {frames:,} frames). "
        return ["Overdue since ", Time(latest_ms), known, *expected, "."]
    if pace or expected_ms is None:
        return [
            *expected,
            "; 95 of 100 such frames are complete by ",
            Time(latest_ms),
            f" (learned from {frames:,} frames).",
        ]
    return [*expected, ", at the latest ", Time(latest_ms), f" in 95 of 100 cases (learned from {frames:,} frames)."]


def passed_sentence(passed: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about the substreams that do not hold the watermark because of a limit.

    Args:
        passed: Members of ``PassedByLimit``.
    """
    first, count, limit = passed["substreams"][0], passed["count"], format_duration(passed["limit_ms"])
    more = f" and {count - 1:,} more" if count > 1 else ""
    is_, does = ("are up to", "do") if count > 1 else ("is", "does")
    named = [*_substream(first), more]
    if passed["limit"] == "max_skew_ms":
        behind = format_duration(first["behind_ms"])
        return [*named, f" {is_} {behind} behind the median, limit {limit}, and {does} not hold the watermark."]
    sent = f"{'have' if count > 1 else 'has'} sent no row yet" if first["behind_ms"] is None else None
    sent = sent or f"{is_} {format_duration(first['behind_ms'])} behind what the queries have read"
    return [
        *named,
        f" {sent}, and {does} not hold the watermark: few rows arrive later than {limit} after their frame.",
    ]


def arrivals_text(arrivals: Mapping[str, Any]) -> str:
    """Return how long after their frames the rows of a job arrive, and the share that arrives in time.

    Args:
        arrivals: Members of an ``ArrivalDelay``.
    """
    delay, target, rows = format_duration(arrivals["delay_ms"]), percent(arrivals["target"]), arrivals["rows"]
    source = "learned" if arrivals["is_learned"] else "not learned yet"
    known = f"target {target}" + (f", so far {percent(1 - arrivals['late'] / rows)}" if rows else "")
    waits = "" if arrivals["proven_ms"] is not None else "; no query proves that it has read all input"
    return f"within {delay} of the end of their frame ({source}; {known}){waits}"


def what_if_skew_sentence(what_if: Mapping[str, Any], coalesced_watermark: int | None) -> list[Fragment]:
    """Return a sentence about what a limit on skew would do now.

    Args:
        what_if: Members of a ``WhatIfSkew``.
        coalesced_watermark: The coalesced watermark of the job.
    """
    limit, passed, reached = format_duration(what_if["limit_ms"]), what_if["passed"], what_if["coalesced_watermark"]
    if passed is None:
        return [f"max_skew {limit} would set no substream apart now."]
    count, named = passed["count"], len(passed["substreams"])
    more = f" and {count - 1:,} more" if count > 1 else ""
    said = [f"max_skew {limit} would set ", *_substream(passed["substreams"][0]), f"{more} apart now"]
    if reached is None or reached == coalesced_watermark:
        return [*said, ", and not move the watermark."]
    rows = f"{what_if['passed_rows']:,} row{'' if what_if['passed_rows'] == 1 else 's'}"
    them = "it sends" if count == 1 else "they send"
    of = f"the first {named} have sent" if named < count else "they have sent" if count > 1 else "it has sent"
    said += [", and let the watermark move to ", Time(reached)]
    return [*said, f". Rows that {them} below that time would be late; so far, {of} {rows} in batches."]


def what_if_arrivals_text(what_if: Mapping[str, Any] | None, max_arrival_delay_ms: int) -> str:
    """Return what a target would have done in the recorded past.

    Args:
        what_if: Members of a ``WhatIfArrivals``; None if the job declares no frames.
        max_arrival_delay_ms: The setting of the job.
    """
    if what_if is None:
        return "The job declares no frames, by which arrival delays are measured: declare frames first."
    start, measured, needed = f"arrival_target {percent(what_if['target'])}", what_if["measured"], what_if["needed"]
    if what_if["delay_ms"] is None and measured < needed:
        return f"{start} is not known yet: it needs {needed:,} rows, and {measured:,} are measured."
    if what_if["delay_ms"] is None:
        known, span = format_duration(max_arrival_delay_ms), format_duration(what_if["measured_ms"])
        return f"{start} is not known yet: it needs rows over {known} (max_arrival_delay), and has them over {span}."
    late, delay = share_text(what_if["late"]), format_duration(what_if["delay_ms"])
    said = f"{start} would wait up to {delay} after each frame. {late} of the rows come later ({measured:,} measured)."
    if what_if["proven_ms"] is None:
        return (
            f"{said} It would not move the watermark now: for that, substreams must hold it, all of queries that have "
            "read all input."
        )
    before, expected = what_if["recorded"], what_if["expected"]
    if before is None or expected is None:
        return said
    (half, half_expected), (most, most_expected) = (
        (format_duration(before[name]), format_duration(expected[name])) for name in ("median_ms", "p95_ms")
    )
    frames = f"Of the last {what_if['frames']:,} frames, half were complete within {half}, and 95 of 100 within {most}"
    would = half_expected if half_expected == most_expected else f"{half_expected} and {most_expected}"
    return f"{said} {frames}. With this target, that would be {would}, and the time until a batch proves it."


def waiting_frame_sentence(explanation: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about the first frame that is not finished, and what it waits for.

    Args:
        explanation: Members of an ``Explanation`` with a frame.
    """
    frame, held_by, watermark = explanation["frame"], explanation["held_by"], explanation["watermark"]
    start: list[Fragment] = ["The frame from ", Time(frame["start"]), " to ", Time(frame["end"]), " waits for "]
    if watermark is not None and watermark >= frame["end"] and explanation["written_held_by"] is not None:
        waits: list[Fragment] = ["the results of ", Name(explanation["written_held_by"])]
    else:
        waits = ["later event times"] if held_by is None else holder(held_by)
    prediction = explanation.get("prediction")
    return [*start, *waits, ".", *([" ", *prediction_sentence(prediction)] if prediction else [])]


def exclusion_text(exclusion: Mapping[str, Any]) -> str:
    """Return what did not count when a watermark passed the end of a frame, and why."""
    count, reason = exclusion["count"], exclusion["reason"]
    if exclusion["partitions"]:
        return f"{count:,} offsets of {', '.join(exclusion['partitions'])} ({reason})"
    if exclusion["batch_id"] is not None:
        return f"batch {exclusion['batch_id']} of {exclusion['query']} ({reason})"
    names = [each["substream"].removeprefix("/").removesuffix("/") for each in exclusion["substreams"]]
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return f"{', '.join(names)}{more} ({reason})"


def group_title(group: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of emissions, and of movements of other watermarks only, among the records of a group."""
    kinds = Counter(record["kind"] for record in group)
    counts = [
        (kinds[Kind.EMISSION], "emission", "emissions"),
        (kinds[Kind.COALESCED_WATERMARK], "movement of C", "movements of C"),
        (kinds[Kind.WRITTEN], "movement of the written watermark", "movements of the written watermark"),
    ]
    return ", ".join(f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count)


def group_details(group: Sequence[Mapping[str, Any]]) -> list[Fragment]:
    """Return the details of a group of movements, latest first: the watermark, its holders, and limits that acted."""
    name, moved = ("W", "watermark") if group[0]["watermark"] is not None else ("C", "coalesced_watermark")
    first, last = group[-1][moved], group[0][moved]
    took = format_duration(group[0]["at_ms"] - group[-1]["at_ms"])
    parts: list[list[Fragment]] = []
    if first is not None and first != last:
        parts.append([f"{name} from ", Time(first), " to ", Time(last), f" in {took}"])
    elif last is not None:
        parts.append([f"{name} at ", Time(last)])
    parts += _group_holders(group)
    limits = Counter(limit["limit"] for record in group for limit in record.get("limits") or ())
    parts += [[f"{limit} acted in {count:,} of them"] for limit, count in limits.items()]
    return _joined(parts)


def percent(share: float) -> str:
    """Return a share in percent, rounded down, so that only a share of 1 is 100 %."""
    return f"{math.floor(share * 1_000_000) / 10_000:.4f}".rstrip("0").rstrip(".") + " %"


def share_text(share: float) -> str:
    """Return a share of rows in percent. Only an exact 0 becomes 0 %, and only an exact 1 becomes 100 %."""
    if 0 < share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share if share in (0, 1) else min(100 * share, 99.9):.3g} %"


def late_span_sentence(span: Mapping[str, Any]) -> list[Fragment]:
    """Return a sentence about the dropped and diverted rows of a substream."""
    rows = span["rows"]
    counts = [(span[disposition], disposition) for disposition in ("dropped", "diverted") if span[disposition]]
    unit = "row" if (rows or counts[0][0]) == 1 else "rows"
    first = f" {unit}" if rows is None else f" of {rows:,} {unit}"
    losses = " and ".join(
        f"{count:,}{'' if index else first}{'' if rows is None else f' ({share_text(count / rows)})'} {disposition}"
        for index, (count, disposition) in enumerate(counts)
    )
    return [*_substream(span), f": {losses} between ", Time(span["start"]), " and ", Time(span["end"]), "."]


def _substream(member: Mapping[str, Any]) -> list[Fragment]:
    name = Name(member["substream"])
    return [name, " of ", Name(member["query"])] if member.get("query") else [name]


def _movement_details(record: Mapping[str, Any]) -> list[list[Fragment]]:
    parts: list[list[Fragment]] = []
    moved = {Kind.EMISSION: "watermark", Kind.WRITTEN: "written_watermark"}.get(record["kind"], "coalesced_watermark")
    if record.get(moved) is not None:
        parts.append([Time(record[moved])])
    if record.get("held_by"):
        parts.append(["held by ", *holder({**record, "reason": record["held_by"]})])
    return parts + [[f"{limit['limit']} passed {limit['count']}"] for limit in record.get("limits") or ()]


def _frame_details(record: Mapping[str, Any]) -> list[list[Fragment]]:
    parts: list[list[Fragment]] = [[Time(record["start"]), " to ", Time(record["end"])]]
    if record["count"] > 1:
        empty = f", {record['empty']:,} of them empty" if record.get("empty") else ""
        parts.append([f"{record['count']:,} frames{empty}"])
    parts.append([FRAME_STATES[record["state"]]])
    if record["generation"] > 1 or record.get("reason"):
        reason = record.get("reason", "")
        parts.append([f"generation {record['generation']} ({FRAME_REASONS.get(reason, reason)})"])
    parts += [[f"{record[name]:,} {name.replace('_', ' ')}"] for name in ROWS_OF_FRAME if record.get(name)]
    return parts


def _declaration_details(record: Mapping[str, Any]) -> list[list[Fragment]]:
    every = record["every"]
    parts: list[list[Fragment]] = [[f"every {every}" if every.isalpha() else f"every {format_duration(int(every))}"]]
    if record.get("offset_ms"):
        parts.append([f"offset {format_duration(record['offset_ms'])}"])
    if record.get("time_zone"):
        parts.append(["time zone ", Name(record["time_zone"])])
    return parts


def _group_holders(group: Sequence[Mapping[str, Any]]) -> list[list[Fragment]]:
    """Return how many movements of a group each holder held, as one part; an empty list if nothing held them."""
    held = Counter(
        tuple(holder_over_time({**record, "reason": record["held_by"]})) for record in group if record.get("held_by")
    )
    if not held:
        return []
    longest = held.most_common(HOLDERS_NAMED)
    if longest[0][1] == len(group):
        return [["held by ", *longest[0][0]]]
    named = [[*fragments, f" for {count:,}"] for fragments, count in longest]
    rest = held.total() - sum(count for _, count in longest)
    if rest:
        others = len(held) - len(longest)
        named.append([f"{others} {'other' if others == 1 else 'others'} for {rest:,}"])
    named[0].append(" of them")
    return [["held by ", *_joined(named, ", ")]]


def _joined(parts: Iterable[Sequence[Fragment]], separator: str = "; ") -> list[Fragment]:
    return [fragment for part in parts for fragment in (separator, *part)][1:]


def _event_details(record: Mapping[str, Any]) -> list[list[Fragment]]:
    parts: list[list[Fragment]] = []
    names = [name.removeprefix("/") for name in record.get("substreams") or []]
    more = (record.get("count") or len(names)) - len(names)
    if partitions := record.get("partitions"):
        some = ", ".join(partitions) + (" and others" if len(partitions) == NAMES_KEPT else "")
        parts.append([f"{record['count']:,} offsets of ", Name(some)])
    if names:
        parts.append([Name(", ".join(names)), f" and {more} more" if more > 0 else ""])
    for member in ("limit", "query", "run_id", "batch_id", "hold", "consumer", "successor"):
        if record.get(member) is not None and not (member == "query" and names):
            parts.append([f"{member} ", Name(str(record[member]))])
    for member in ("watermark", "at_most", "up_to"):
        if record.get(member) is not None:
            parts.append([f"{member.replace('_', ' ')} ", Time(record[member])])
    return parts


def _not_held(job: Mapping[str, Any]) -> list[Fragment]:
    watermark, substreams, next_step = job["watermark"], job.get("substreams"), job.get("next_step")
    is_empty = substreams is not None and not any(substreams.get(state) for state in COUNTED_STATES)
    if watermark is None and is_empty:
        ignored = ", except event times too far in the future, which are ignored" if job.get("future_rows") else ""
        return [f"No data reported yet{ignored}."]
    start: list[Fragment] = ["No watermark yet"] if watermark is None else ["Complete up to ", Time(watermark)]
    step: list[Fragment] = (
        [] if next_step is None else ["the throttle waits for a merged watermark of ", Time(next_step)]
    )
    if substreams is not None and substreams["all_idle"]:
        return [*start, ": all substreams are idle", *(["; ", *step] if step else []), "."]
    if (arrivals := job.get("arrivals")) and arrivals["bound"] is not None:
        step = [
            f"each frame waits {format_duration(arrivals['delay_ms'])} for its rows",
            *(["; ", *step] if step else []),
        ]
    return [*start, "; ", *(step or ["nothing holds it"]), "."]


def _start(watermark: int | None, held_by: Mapping[str, Any], now_ms: int) -> list[Fragment]:
    if watermark is None:
        return ["No watermark yet: held by "]
    silent_since_ms = held_by["begun_ms"] if held_by["reason"] == "open_batch" else held_by["last_event_ms"]
    if is_held(held_by["reason"], silent_since_ms, now_ms):
        return ["Held at ", Time(watermark), " by "]
    return ["Complete up to ", Time(watermark), "; held by "]


def _explanation(held_by: Mapping[str, Any], now_ms: int, *, has_deadline: bool) -> list[Fragment]:
    last_event_ms = held_by["last_event_ms"]
    match held_by["reason"]:
        case "slow" if now_ms - last_event_ms < SILENT_MS:
            return [", the slowest substream"]
        case "slow":
            return [", silent for ", Elapsed(last_event_ms)]
        case "blocked":
            silent: list[Fragment] = [", silent for ", Elapsed(last_event_ms)]
            return silent if has_deadline else [*silent, "; its query has not confirmed that it has no data"]
        case "never_reported":
            return [", which has no events yet"]
        case "missing_query":
            return [", which is expected and has no substreams yet"]
        case "open_batch":
            return [", open for ", Elapsed(held_by["begun_ms"])]
        case _:
            return [", set by an operator"]


def _reason(held_by: Mapping[str, Any], holds: Iterable[Mapping[str, Any]]) -> list[Fragment]:
    reason = next((hold["reason"] for hold in holds if hold["hold"] == held_by["hold"]), None)
    return [" (", Name(reason), ")"] if reason else []


def _next_deadline(holders: list[Mapping[str, Any]] | None, now_ms: int) -> list[Fragment]:
    until = holders[0]["until"] if holders else []
    if holders and holders[0]["reason"] == "slow" and now_ms - holders[0]["last_event_ms"] < SILENT_MS:
        # Each report of the substream starts its idle timeout again.
        until = [deadline for deadline in until if deadline["limit"] != "idle_timeout_ms"]
    if not holders or not until:
        return []
    deadline = until[0]
    effect = EFFECTS[deadline["limit"]]
    if holders[0]["reason"] == "missing_query":
        effect = effect.replace("its query", "it")
    if not deadline["needs_query_report"]:
        return [f"; {effect} in ", Remaining(deadline["at_ms"])]
    if deadline["at_ms"] <= now_ms:
        return [f"; {effect} as soon as {CONFIRMATION}"]
    return [f"; {effect} in ", Remaining(deadline["at_ms"]), f", if {CONFIRMATION}"]
