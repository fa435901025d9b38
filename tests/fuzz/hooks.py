"""A schemathesis hook that adapts generated requests to rules that JSON Schema cannot express."""

import re
from collections.abc import Collection
from typing import Any

import schemathesis

from tidegate.domain.batches import OUTPUTS_KEPT
from tidegate.domain.calendar import DAY_MS, HOUR_MS, QUARTER_MS, UNITS
from tidegate.domain.values import EXACT_DOUBLE, INT64
from tidegate.times import doubt_about
from tidegate.views.types import PRINTABLE, VERSION

COLUMNS = {
    "max_event_times",
    "min_event_times",
    "watermarks",
    "counts",
    "future_counts",
    "on_time",
    "late",
    "null_event_time",
    "updated",
    "future",
    "delays",
    "hours",
}
OFFSET_COLUMNS = {"starts", "ends", "latest", "behind_ms"}
TIMES = {"start", "at_least", "at_most", "before", "since", "up_to", "as_of", "watermarks"}
"""Parameters and members whose values are questioned if they are unlikely to be in milliseconds."""
LONGEST_NAME = 200
FIRST_HOUR, LAST_HOUR, MOST_ROWS = -2_501_999_793, 2_501_999_792, 10**12


@schemathesis.hook
def before_call(_context: Any, case: Any, _arguments: Any) -> None:
    """Change a generated request so that it meets these rules:

    * Times are in milliseconds.
    * Columns are as long as the list of substreams.
    * Names that JSON Schema allows have at most 200 bytes.
    * A window's size is a multiple of its slide, and its offset is below its size.
    * The lag of a cold start lies between floor and ceiling.
    * Counts by hour do not exceed the counts of their substream.
    * Offsets are those of the committed batch, or of a batch that a heartbeat names. Open transactions are in listed
      partitions, and substreams are named after partitions with a topic and a number.
    * A table has one version, which has 64 bits.
    * The offset and the time zone of frames suit their length. Counts by frame do not exceed the counts of the batch.
    """
    for given in (case.query, case.body, case.path_parameters):
        for name in TIMES & set(given if isinstance(given, dict) else ()):
            value = given[name]
            given[name] = (
                [_in_milliseconds(each) for each in value] if isinstance(value, list) else _in_milliseconds(value)
            )
    if not isinstance(case.body, dict):
        return
    for table in (case.body, case.body.get("rows")):
        if isinstance(table, dict):
            _equalise(table)
    if isinstance(offsets := case.body.get("offsets"), dict):
        _equalise(offsets, "partitions", OFFSET_COLUMNS)
        _list_transactions(offsets)
        if "observed_ms" in case.body and case.body.get("after_batch") is None:
            case.body["after_batch"] = 0
    if _are_outputs(outputs := case.body.get("outputs", [])):
        tables = {output["table"]: min(int(output["version"]), INT64.highest) for output in outputs}
        outputs[:] = [{"table": table, "version": str(version)} for table, version in tables.items()]
    overrides = case.body.get("overrides")
    for held_by in (case.body, *(overrides if isinstance(overrides, list) else ())):
        if isinstance(held_by, dict) and isinstance(held_by.get("policy"), dict):
            _put_in_order(held_by["policy"])
    if isinstance(frames := case.body.get("frames"), dict):
        _declare(frames)
    throttle = case.body.get("throttle")
    if isinstance(throttle, dict) and _whole(throttle.get("size_ms")):
        slide = throttle.get("slide_ms")
        if _whole(slide):
            throttle["size_ms"] = slide
        if _whole(throttle.get("offset_ms")):
            throttle["offset_ms"] %= throttle["size_ms"]


def _declare(frames: dict[str, Any]) -> None:
    """Give days and months a known time zone and quarters of an hour as offset, and other frames no time zone."""
    every: Any = frames.get("every")
    offset = frames.get("offset_ms", 0)
    if not (every in UNITS or (_whole(every) and every == int(every))):
        return
    is_calendar = every in ("day", "month")
    if isinstance(frames.get("time_zone"), str) and not (is_calendar and frames["time_zone"] == "Europe/Berlin"):
        frames["time_zone"] = None
    if offset == 0 or _whole(offset):
        quarter = QUARTER_MS if is_calendar else 1
        length = DAY_MS if is_calendar else HOUR_MS if every == "hour" else int(every)
        frames["offset_ms"] = int(offset) % length // quarter * quarter


def _are_outputs(outputs: Any) -> bool:
    """Return whether a list of tables follows the schema. The coordinator must refuse any other list."""
    return (
        isinstance(outputs, list)
        and len(outputs) <= OUTPUTS_KEPT
        and all(
            isinstance(output, dict)
            and output.keys() == {"table", "version"}
            and all(isinstance(text, str) for text in output.values())
            and re.fullmatch(f"{PRINTABLE}{{1,1000}}", output["table"])
            and re.fullmatch(VERSION, output["version"])
            for output in outputs
        )
    )


def _in_milliseconds(value: Any) -> Any:
    """Return 0 for a number that looks like a time in another unit or like a date, and any other value as it is."""
    try:
        return 0 if not isinstance(value, bool) and doubt_about(int(value)) else value
    except (TypeError, ValueError, OverflowError):
        return value


def _put_in_order(policy: dict[str, Any]) -> None:
    """Move floor and ceiling so that the lag of a cold start lies between them."""
    cold = policy.get("cold_start_lag_ms")
    if cold == 0 or _whole(cold):
        if _whole(policy.get("floor_ms")):
            policy["floor_ms"] = min(policy["floor_ms"], cold)
        if policy.get("ceiling_ms") == 0 or _whole(policy.get("ceiling_ms")):
            policy["ceiling_ms"] = max(policy["ceiling_ms"], cold)


def _list_transactions(offsets: dict[str, Any]) -> None:
    """Keep open transactions of listed partitions, and values that the coordinator must refuse.

    Keep names of substreams only for partitions that have a topic and a number.
    """
    batch_id: Any = offsets.get("batch_id")
    if _whole(batch_id) and batch_id <= EXACT_DOUBLE.highest and batch_id == int(batch_id):
        offsets["batch_id"] = None
    partitions, named = offsets.get("partitions"), offsets.get("open_transactions")
    if not isinstance(partitions, list):
        return
    names = [name for name in partitions if _is_name(name)]
    if _is_columns(offsets) and not all(re.fullmatch(".+/[^/]+", name) for name in names):
        offsets["substream_columns"] = []
    if not isinstance(named, list) or not all(map(_is_name, named)):
        return
    if len(set(named)) == len(named):
        offsets["open_transactions"] = [name for name in named if name in partitions]


def _is_columns(offsets: dict[str, Any]) -> bool:
    columns = offsets.get("substream_columns")
    return columns in (["topic"], ["partition"], ["topic", "partition"], ["partition", "topic"])


def _is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(f"{PRINTABLE}{{1,{LONGEST_NAME}}}", name) is not None


def _equalise(table: dict[str, Any], of: str = "substreams", members: Collection[str] = COLUMNS) -> None:
    names = table.get(of)
    if not isinstance(names, list):
        return
    names[:] = [
        name
        for name in names
        if not isinstance(name, str) or len(name.encode()) <= LONGEST_NAME or len(name) > LONGEST_NAME
    ]
    columns = {member: column for member, column in table.items() if member in members and isinstance(column, list)}
    if not all(columns.values()):
        names.clear()
    for member, column in columns.items():
        table[member] = (column * (len(names) + 1))[: len(names)]
    # An invalid list stays as it is, because the coordinator must refuse it.
    for member in ("all_hours", "frames"):
        entries = table.get(member)
        if isinstance(entries, list) and all(_is_entry(entry, of_hour=member == "all_hours") for entry in entries):
            entries.clear()
    if "hours" in columns:
        _account_for(table)


def _account_for(table: dict[str, Any]) -> None:
    """Raise the counts of rows to at least the sums of their hours."""
    for at, hours in enumerate(table["hours"]):
        entries = [entry for entry in hours if _is_entry(entry)] if isinstance(hours, list) else []
        for entry in entries:
            entry[1:] = [min(entry[1], 1000), 0, 0]
        room = table.get("on_time")
        if entries and isinstance(room, list) and at < len(room) and (room[at] == 0 or _whole(room[at])):
            room[at] = max(room[at], sum(entry[1] for entry in entries))


def _is_entry(entry: Any, of_hour: bool = True) -> bool:
    """Return whether an entry of an hour, or of a frame, is valid under the OpenAPI document."""
    first, last = (FIRST_HOUR, LAST_HOUR) if of_hour else (-EXACT_DOUBLE.highest, EXACT_DOUBLE.highest)
    return (
        isinstance(entry, list)
        and len(entry) == 4
        and all(isinstance(number, int | float) and number == int(number) for number in entry)
        and first <= entry[0] <= last
        and all(0 <= number <= MOST_ROWS for number in entry[1:])
    )


def _long_in_bytes_alone(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME < len(name.encode(errors="replace"))


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
