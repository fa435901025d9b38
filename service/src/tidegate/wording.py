"""How people are told where a job is: the same words on the command line and on the page.

A sentence is a list of pieces. What changes from reader to reader, or from second to second, is kept apart from the
words: moments, durations, and names, which may hold anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.domain.journal import MOVEMENTS, Kind
from tidegate.times import for_how_long, shown

SILENT_MS = 5_000
"""Below this a substream is not called silent."""

REASONS = {
    "slow": "it is the furthest behind",
    "never_reported": "nothing was seen of it yet",
    "blocked": "it is silent, and its query has not said that there was nothing",
    "missing_query": "the query is expected, and has not shown its substreams",
    "open_batch": "the batch is open",
    "hold": "it is held by hand",
}

UNTIL = {
    "idle_timeout_ms": "it goes idle",
    "query_timeout_ms": "the watermark goes on without its query",
    "max_retention_ms": "it is passed by retention",
    "max_batch_hold_ms": "the watermark goes on without it",
    "max_delay_ms": "its policy moves on",
    "max_lull_ms": "its policy moves on",
    "wall_clock_lag_ms": "its policy moves on",
    "expires_ms": "the hold expires",
}


@dataclass(frozen=True, slots=True)
class At:
    """A moment, of event time or of processing time."""

    ms: int


@dataclass(frozen=True, slots=True)
class Since:
    """How long ago a moment of processing time was."""

    ms: int


@dataclass(frozen=True, slots=True)
class Until:
    """How long it is to a moment of processing time."""

    ms: int


@dataclass(frozen=True, slots=True)
class Name:
    """What somebody called something."""

    text: str


Piece = str | At | Since | Until | Name


def plain(pieces: Iterable[Piece], now_ms: int) -> str:
    """As text, with moments in UTC."""
    found = []
    for piece in pieces:
        match piece:
            case At(ms):
                found.append(shown(ms))
            case Since(ms):
                found.append(for_how_long(now_ms - ms))
            case Until(ms):
                found.append(for_how_long(ms - now_ms))
            case Name(text):
                found.append(text)
            case _:
                found.append(piece)
    return "".join(found)


def sentence(told: Mapping[str, Any]) -> list[Piece]:
    """Where a job is, and why it is no further: from any answer that says so of it. An explanation says until when,
    the status of the job what there is where nobody holds it.
    """
    watermark = told["watermark"]
    if told["complete"]:
        ended: list[Piece] = ["Complete: the input has ended"]
        return [*ended, "."] if watermark is None else [*ended, " at ", At(watermark), "."]
    held_by = told["held_by"]
    if held_by is None:
        return _unheld(watermark, told.get("substreams"), told.get("future_rows", 0))
    where: list[Piece] = ["No watermark yet: held by "] if watermark is None else ["Held at ", At(watermark), " by "]
    until = _until(told.get("holders"), told["now_ms"])
    return [*where, *holding(held_by), *_because(held_by, told["now_ms"], bool(until)), *until, "."]


def holding(held: Mapping[str, Any]) -> list[Piece]:
    """One who holds, by name."""
    match held["reason"]:
        case "open_batch":
            return [f"batch {held['batch_id']} of ", Name(held["query"])]
        case "missing_query":
            return ["the query ", Name(held["query"])]
        case "hold":
            return ["the hold ", Name(held["hold"])]
        case _:
            name = Name(held["substream"])
            return [name, " of ", Name(held["query"])] if held.get("query") else [name]


def details(record: Mapping[str, Any]) -> list[Piece]:
    """What a record of the history says beyond its kind."""
    found: list[list[Piece]] = []
    if record["kind"] in MOVEMENTS:
        moved = "watermark" if record["kind"] == Kind.EMISSION else "coalesced_watermark"
        if record.get(moved) is not None:
            found.append([At(record[moved])])
        if record.get("held_by"):
            found.append(["held by ", *holding({**record, "reason": record["held_by"]})])
        found += [[f"past {limit['count']} by {limit['limit']}"] for limit in record.get("limits") or ()]
    else:
        names = [name.removeprefix("/") for name in record.get("substreams") or []]
        more = (record.get("count") or len(names)) - len(names)
        if names:
            found.append([Name(", ".join(names)), f" and {more} more" if more > 0 else ""])
        for member in ("limit", "query", "run_id", "batch_id", "hold", "successor"):
            if record.get(member) is not None and not (member == "query" and names):
                found.append([f"{member} ", Name(str(record[member]))])
        for member in ("watermark", "at_most", "up_to"):
            if record.get(member) is not None:
                found.append([f"{member.replace('_', ' ')} ", At(record[member])])
    if record.get("actor"):
        found.append(["by ", Name(record["actor"])])
    if record.get("reason"):
        found.append(["(", Name(record["reason"]), ")"])
    return [piece for part in found for piece in ("; ", *part)][1:]


def lost(share: float) -> str:
    """How much of some rows: what is not nothing is not said to be nothing, nor what is not all to be all."""
    if 0 < share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share if share in (0, 1) else min(100 * share, 99.9):.3g} %"


def loss(span: Mapping[str, Any]) -> list[Piece]:
    """Where and when rows of a substream were late, and what became of them."""
    name: list[Piece] = [Name(span["substream"])]
    if span["query"]:
        name += [" of ", Name(span["query"])]
    between: list[Piece] = [" between ", At(span["start"]), " and ", At(span["end"]), "."]
    rows, (dropped, diverted) = span["rows"], (f"{span[what]:,}" for what in ("dropped", "diverted"))
    of_all = " rows"
    if rows is not None:
        dropped, diverted = (lost(span[what] / rows) for what in ("dropped", "diverted"))
        of_all = f" of its {rows:,} rows"
    if not span["diverted"]:
        return [*name, f" lost {dropped}{of_all}", *between]
    if not span["dropped"]:
        return [*name, f" had {diverted}{of_all} diverted", *between]
    return [*name, f" lost {dropped}{of_all}, and had {diverted} diverted,", *between]


def _unheld(watermark: int | None, substreams: Mapping[str, Any] | None, future: int) -> list[Piece]:
    known = None if substreams is None else substreams["active"] + substreams["idle"] + substreams["done"]
    if known == 0 and watermark is None and future:
        return ["Nothing was reported yet but event times from the future, which are not believed."]
    if known == 0 and watermark is None:
        return ["Nothing was reported yet."]
    where: list[Piece] = ["No watermark yet"] if watermark is None else ["Complete up to ", At(watermark)]
    if substreams is not None and substreams["all_idle"]:
        return [*where, ": all substreams are idle, and none is waited for."]
    return [*where, "; nobody holds it back."]


def _because(held_by: Mapping[str, Any], now_ms: int, until_when: bool) -> list[Piece]:
    match held_by["reason"]:
        case "slow":
            long = now_ms - held_by["last_event_ms"] >= SILENT_MS
            return [", silent for ", Since(held_by["last_event_ms"])] if long else [", the furthest behind"]
        case "blocked":
            silent: list[Piece] = [", silent for ", Since(held_by["last_event_ms"])]
            return silent if until_when else [*silent, ", whose query has not said that there was nothing"]
        case "never_reported":
            return [", of which nothing was seen yet"]
        case "missing_query":
            return [", which is expected and has shown no substreams yet"]
        case "open_batch":
            return [", open for ", Since(held_by["begun_ms"])]
        case _:
            return [", an operator's"]


def _until(held: list[Mapping[str, Any]] | None, now_ms: int) -> list[Piece]:
    if not held or not held[0]["until"]:
        return []
    first = held[0]["until"][0]
    then = UNTIL[first["limit"]]
    if held[0]["reason"] == "missing_query":
        then = then.replace("its query", "it")
    if not first["needs_query_report"]:
        return [f"; {then} in ", Until(first["at_ms"])]
    if first["at_ms"] <= now_ms:
        return [f"; {then} as soon as its query says that there was nothing"]
    return [f"; {then} in ", Until(first["at_ms"]), ", if its query says that there was nothing"]
