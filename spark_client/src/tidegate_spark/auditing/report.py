"""The report of an audit: as a JSON document, as text for a terminal, and as one HTML file with pictures.

It has names of substreams and times, and no other value of a row. Example rows are in it only if they were asked for.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from tidegate_spark.auditing.audit import Audit
from tidegate_spark.auditing.losses import HOUR_MS, Loss, behind
from tidegate_spark.auditing.policies import UnderPolicy, substream_name

WORST = 10
"""Number of windows, substreams and holders that the text shows."""
MOST_BARS = 240
"""Maximum number of bars of the picture of rows by hour; of a longer time, it shows days."""
DAY_MS = 24 * HOUR_MS
_UNITS = (
    (DAY_MS, "day", "days"),
    (HOUR_MS, "hour", "hours"),
    (60_000, "minute", "minutes"),
    (1000, "second", "seconds"),
)


def document(audit: Audit) -> dict[str, Any]:
    """Return what an audit has found as JSON: all times in ISO 8601 (UTC), all durations in milliseconds."""
    losses, batches = audit.losses, audit.batches
    planned = [batch.planned_ms for batch in batches if batch.is_logged or audit.checkpoint is None]
    worst = sorted(losses.by_slot.items(), key=lambda item: (-item[1].most, item[0]))
    return {
        "checkpoint": None if audit.checkpoint is None else audit.checkpoint.path,
        "query_id": None if audit.checkpoint is None else audit.checkpoint.query_id,
        "sources": list(audit.kinds),
        "operator": None if audit.operator is None else {"number": audit.operator.number, "name": audit.operator.name},
        "judged": audit.judged,
        "windows_are_known": audit.windows_are_known,
        "window_ms": None if audit.window is None else audit.window.size_ms,
        "delays_ms": list(audit.delays_ms),
        "batches": {
            "audited": len(batches),
            "logged": sum(batch.is_logged for batch in batches),
            "first": next((batch.batch_id for batch in batches if batch.is_logged), None),
            "last": batches[-1].batch_id,
            "from": _iso(min(planned, default=None)),
            "to": _iso(max(planned, default=None)),
        },
        "watermarks": {
            "compared": audit.compared,
            "differences": [
                {"batch": each.batch_id, "checkpoint": _iso(each.logged), "rows": _iso(each.computed)}
                for each in audit.differences
            ],
            "restarts": list(audit.restarts),
        },
        "unit": "rows" if audit.window is None or not audit.window.is_sliding else "rows in windows",
        "rows": _loss(losses.total)
        | {"below_watermark": losses.below_watermark, "without_event_time": losses.without_event_time},
        "hours": [{"start": _iso(at)} | _loss(loss) for at, loss in sorted(losses.by_hour.items())],
        "windows": [{"end": _iso(at)} | _loss(loss) for at, loss in worst if loss.most],
        "substreams": [
            {"substream": name, "source": source, "name": substream_name(source, name)}
            | _loss(loss)
            | {"behind_ms": _quantiles(minutes), "longest_gap_ms": audit.gaps_ms.get(name)}
            for (source, name), loss, minutes in _substreams(audit)
        ],
        "policies": [_policy(each) for each in audit.policies],
        "in_spark": [_policy(each) for each in audit.in_spark],
        "idle_timeout_ms": idle_timeout_ms(audit),
        "missing": list(audit.missing),
        "examples": [{name: str(value) for name, value in row.items()} for row in audit.examples],
        "dropped_by_spark": None if audit.dropped is None else {"rows": audit.dropped[0], "batches": audit.dropped[1]},
        "write": code(audit),
    }


def _substreams(audit: Audit) -> list[tuple[tuple[int, str], Loss, Counter[int]]]:
    minutes = behind(audit.groups)
    found = [(of, loss, minutes.get(of, Counter())) for of, loss in audit.losses.by_substream.items()]
    return sorted(found, key=lambda each: (-each[1].most, each[0]))


def _loss(loss: Loss) -> dict[str, Any]:
    bounds = {} if loss.least == loss.most else {"lost_at_least": loss.least}
    return {"rows": loss.rows, "lost": loss.most, **bounds, "share": round(loss.share, 6)}


def _policy(policy: UnderPolicy) -> dict[str, Any]:
    return {
        "name": policy.name,
        "target": policy.target,
        "lag_ms": policy.lag_ms,
        "lost": policy.lost,
        "share": round(policy.share, 6),
        "windows": policy.windows,
        "delay_ms": None if policy.delay_ms is None else round(policy.delay_ms),
        "holders": [
            {"substream": each.substream, "batches": each.batches, "held_ms": each.held_ms} for each in policy.holders
        ],
    }


def _quantiles(minutes: Counter[int]) -> dict[str, int] | None:
    """Return the median and the highest distance behind the others, in milliseconds."""
    if not minutes:
        return None
    half, seen, median = minutes.total() / 2, 0, 0
    for median in sorted(minutes):
        seen += minutes[median]
        if seen >= half:
            break
    return {"median": median * 60_000, "highest": max(minutes) * 60_000}


def idle_timeout_ms(audit: Audit) -> int | None:
    """Return an idle timeout that no gap of a substream has reached: the longest gap and a half, in whole minutes.

    Batches that catch up with much more event time than they take say nothing of it: the result is then None.
    """
    times = [batch.planned_ms for batch in audit.batches if batch.is_logged or audit.checkpoint is None]
    longest = max(audit.gaps_ms.values(), default=0)
    if not longest or not audit.losses.by_slot:
        return None
    span_ms = max(audit.losses.by_slot) - min(audit.losses.by_slot)
    if 2 * (max(times) - min(times)) < span_ms:
        return None
    return math.ceil(1.5 * longest / 60_000) * 60_000


def recommended(audit: Audit) -> UnderPolicy:
    """Return the first policy that loses at most half as much as the query: with its delay, or for a target."""
    candidates = [each for each in audit.policies if each.lag_ms is not None]
    return next((each for each in candidates if 2 * each.lost <= audit.losses.total.most), candidates[-1])


def code(audit: Audit) -> str:
    """Return the lines of a program that follows the job's watermark with the recommended lag."""
    lag = _timedelta(recommended(audit).lag_ms or 0)
    windows = "" if audit.window is None else f", windows={_timedelta(audit.window.size_ms)}"
    event_time, substream = (
        json.dumps(text or "…", ensure_ascii=False) for text in (audit.event_time, audit.substream)
    )
    further = "" if len(audit.kinds) == 1 else "# the same for each further source, with a queryName of its own\n"
    return (
        "from datetime import timedelta\n"
        "import tidegate_spark\n\n"
        "# A coordinator must run: tidegate serve\n"
        "lag = tidegate_spark.limiting_lag(" + lag + ")\n"
        'job = tidegate_spark.connect("http://127.0.0.1:8000", job="NAME", config=lag)\n'
        'here = {"queryName": "QUERY", "checkpointLocation": "A NEW CHECKPOINT"}\n'
        "# in place of withWatermark:\n"
        f"rows = job.with_watermark(rows, event_time={event_time}, substream={substream}{windows}, **here)\n"
        f"{further}"
        "query = ….start(**here)"
    )


def _timedelta(duration_ms: int) -> str:
    if duration_ms == 0:
        return "timedelta(0)"
    for unit, _, name in _UNITS:
        if duration_ms % unit == 0:
            return f"timedelta({name}={duration_ms // unit})"
    return f"timedelta(milliseconds={duration_ms})"


def duration(duration_ms: float) -> str:
    """Return a duration as text, such as ``1 hour 20 minutes``: its two highest units."""
    left, words = round(duration_ms), []
    for unit, one, many in _UNITS:
        number, left = divmod(left, unit)
        if number:
            words.append(f"{number} {one if number == 1 else many}")
    return " ".join(words[:2]) or f"{round(duration_ms)} ms"


def _iso(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _lost(of: Mapping[str, Any]) -> str:
    """Return a number of lost rows, or its bounds."""
    least = of.get("lost_at_least")
    return f"{of['lost']:,}" if least is None else f"{least:,} to {of['lost']:,}"


def _label(policy: Mapping[str, Any], delays_ms: Sequence[int], is_spark: bool) -> str:
    """Return the name of a policy of a document."""
    if policy["name"] is not None:
        return str(policy["name"])
    target = policy["target"]
    if is_spark:
        named, now = " and ".join(duration(delay_ms + policy["lag_ms"]) for delay_ms in delays_ms), "as now"
    else:
        named, now = duration(policy["lag_ms"]), "as now" if len(delays_ms) == 1 else "the longest delay"
    return f"{named} ({now})" if target is None else f"{named} (for {100 * target:g} %)"


def share(part: float) -> str:
    """Return a share in percent."""
    return f"{100 * part:.2f} %" if part == 0 or part >= 0.0001 else "< 0.01 %"


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the findings of a document as sentences: the result first, or a warning that it is not of this query."""
    rows, watermarks = found["rows"], found["watermarks"]
    said = [_result(found)]
    if watermarks["differences"]:
        said = [_difference(found), *found["missing"], *said]
    else:
        said += found["missing"]
    if found["judged"] == "window" and rows["below_watermark"] > rows["lost"]:
        said.append(
            f"{rows['below_watermark'] - rows['lost']:,} more rows were below the watermark, and counted, because "
            "their windows were open."
        )
    if rows["without_event_time"]:
        said.append(f"{rows['without_event_time']:,} more rows have no event time, and are in none of these figures.")
    if rows["without_event_time"] and not rows["rows"]:
        said.append("No row has an event time: check the event time, the format, the schema, and the order of sources.")
    said.append(_batches(found))
    if watermarks["compared"] and not watermarks["differences"]:
        of_window = ""
        if found["judged"] == "window":
            is_known = found["windows_are_known"]
            of_window = " Its state has these windows." if is_known else " It does not prove the size of the windows."
        said.append(
            f"In all {watermarks['compared']:,} batches, the watermark computed from the rows equals that of the "
            f"checkpoint, which proves the event time, the delay and the rows.{of_window}"
        )
    if found["dropped_by_spark"] is not None:
        dropped = found["dropped_by_spark"]
        said.append(
            f"Spark's numRowsDroppedByWatermark says {dropped['rows']:,} rows in {dropped['batches']:,} batches."
        )
    if rows["lost"] and found["judged"] == "window" and found["checkpoint"] is not None:
        said.append(DROPPED)
    if watermarks["restarts"]:
        said.append(
            "The query was started again before batch "
            + ", ".join(map(str, watermarks["restarts"][:WORST]))
            + ", and forgot the watermarks of single sources."
        )
    return said


def _result(found: Mapping[str, Any]) -> str:
    rows = found["rows"]
    if found["judged"] is None:
        return "No stateful operator of this query compares rows with a watermark, so it drops none."
    lost = f"{_lost(rows)} of {rows['rows']:,} {found['unit']} ({share(rows['share'])})"
    if found["checkpoint"] is None:
        return f"The query would lose {lost}."
    operator = found["operator"]["name"] or str(found["operator"]["number"])
    by = "windows" if found["judged"] == "window" else "their own event times"
    more = " Some may be duplicates of earlier rows." if operator.startswith("dedupe") else ""
    return f"The query has lost {lost}, in the operator {operator}, which judges rows by {by}.{more}"


def _difference(found: Mapping[str, Any]) -> str:
    watermarks = found["watermarks"]
    first = watermarks["differences"][0]
    cause = (
        "Rows are missing"
        if found["missing"]
        else "Check the format, schema and order of the sources, the event time, the delay, time zones, and filters"
    )
    return (
        f"The figures are not those of this query: in {len(watermarks['differences']):,} of {watermarks['compared']:,} "
        f"batches, the rows give another watermark than the checkpoint has. After batch {first['batch']}, it has "
        f"{first['checkpoint']}, and the rows give {first['rows']}. {cause}"
        + (":" if found["missing"] else " before withWatermark. Or the files have changed since.")
    )


def _batches(found: Mapping[str, Any]) -> str:
    batches = found["batches"]
    earlier = batches["audited"] - batches["logged"]
    if found["checkpoint"] is None or not earlier:
        return f"{batches['audited']:,} batches from {batches['from']} to {batches['to']}."
    return (
        f"{batches['audited']:,} batches, the last {batches['logged']:,} from {batches['from']} to {batches['to']}: "
        f"the checkpoint has forgotten the watermarks of {earlier:,}, which follow from the rows."
    )


UNDER = "The same batches under Tidegate: the minimum over the substreams, minus a lag"
LONGER = "The same batches in Spark, with a longer delay of withWatermark"
BY_MINUTE = "In these tables, rows count as if all of a minute were at its beginning, so that slightly more are late."
FRESHER = (
    "With the same lag, Tidegate would lose more: Spark compares a batch with the watermark of the batch before, and "
    "Tidegate with one that is newer by a batch. It gains where some substreams run behind others."
)
WRITE = "What to write, with the first lag that loses at most half as much as the query"

CLOSED = "windows closed"
CLOSES = "windows close after their end (mean, in event time)"

DROPPED = (
    "Spark's numRowsDroppedByWatermark counts less: an aggregate first merges the rows of a key and window in each "
    "task, and counts what is left."
)


def are_of_query(found: Mapping[str, Any]) -> bool:
    """Return whether the figures of a document may be those of the query, or those of the files that are left."""
    return bool(found["missing"]) or not found["watermarks"]["differences"]


def notes(found: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of the comparison with other watermarks."""
    if found["judged"] == "row":
        return [BY_MINUTE]
    now = next(each for each in found["policies"] if each["target"] is None)
    return [FRESHER] if now["lost"] > found["rows"]["lost"] > 0 else []


def text(audit: Audit) -> str:
    """Return the report for a terminal."""
    from rich.console import Console
    from rich.table import Table

    found = document(audit)
    console = Console(width=110, record=True, file=StringIO())
    for sentence in sentences(found):
        console.print(sentence, highlight=False)
    if not are_of_query(found):
        return console.export_text(styles=False)
    if audit.losses.total.most:
        of_windows = [("Windows with the most lost rows", "end", found["windows"])] if audit.window else []
        for title, name, entries in (
            *of_windows,
            ("Substreams with the most lost rows", "substream", found["substreams"]),
        ):
            table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
            table.add_column(name)
            for column in (
                "rows",
                "lost",
                "share",
                *(("behind the highest event time (median, most)",) if name == "substream" else ()),
            ):
                table.add_column(column, justify="right")
            for entry in entries[:WORST]:
                cells = [
                    str(entry["name" if name == "substream" else name]),
                    f"{entry['rows']:,}",
                    _lost(entry),
                    share(entry["share"]),
                ]
                if name == "substream":
                    distance = entry["behind_ms"]
                    cells.append(
                        "-" if distance is None else f"{duration(distance['median'])}, {duration(distance['highest'])}"
                    )
                table.add_row(*cells)
            console.print()
            console.print(table)
    for row in found["examples"]:
        console.print(
            "lost: " + ", ".join(f"{name}={value}" for name, value in row.items()), highlight=False, markup=False
        )
    of_windows_too = (CLOSED, CLOSES) if found["judged"] == "window" else ()
    for title, name, policies in ((UNDER, "lag", found["policies"]), (LONGER, "delay", found["in_spark"])):
        if not policies:
            continue
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        has_holders = ("who holds the longest",) if name == "lag" else ()
        for column in (name, "lost", "share", *of_windows_too, *has_holders):
            table.add_column(column)
        for policy in policies:
            names = ", ".join(each["substream"] for each in policy["holders"][:3]) or "-"
            closes = "none closed" if policy["delay_ms"] is None else duration(policy["delay_ms"])
            figures = (
                _label(policy, found["delays_ms"], name == "delay"),
                f"{policy['lost']:,}",
                share(policy["share"]),
            )
            closed = f"{policy['windows']:,}"
            table.add_row(*figures, *((closed, closes) if of_windows_too else ()), *((names,) if has_holders else ()))
        console.print()
        console.print(table)
    for sentence in notes(found):
        console.print()
        console.print(sentence, highlight=False)
    idle = found["idle_timeout_ms"]
    if idle is not None:
        console.print()
        console.print(
            f"The longest gap of a substream suggests an idle timeout of {duration(idle)}, if substreams may end.",
            highlight=False,
        )
    console.print()
    console.print(f"{WRITE}:", style="bold")
    console.print(found["write"], highlight=False, markup=False)
    return console.export_text(styles=False)


def html(audit: Audit) -> str:
    """Return the report as one HTML file, which loads nothing."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("tidegate_spark.auditing", "."), autoescape=True)
    environment.filters |= {"duration": duration, "share": share, "lost": _lost, "label": _label}
    found = document(audit)
    hours = {at: (loss.rows - loss.most, loss.most) for at, loss in audit.losses.by_hour.items()}
    return environment.get_template("report.html").render(
        found=found,
        sentences=sentences(found),
        closed=CLOSED,
        closes=CLOSES,
        under=UNDER,
        longer=LONGER,
        write=WRITE,
        notes=notes(found),
        are_of_query=are_of_query(found),
        bars=_bars(hours),
        recommended=_policy(recommended(audit)),
        worst=WORST,
    )


def _bars(hours: Mapping[int, tuple[int, int]]) -> dict[str, Any] | None:
    """Return the bars of rows by hour, or by day if there are many hours: positions and heights in percent."""
    if not hours:
        return None
    first, last = min(hours), max(hours)
    width = HOUR_MS if (last - first) // HOUR_MS < MOST_BARS else DAY_MS
    summed: Counter[tuple[int, bool]] = Counter()
    for at, numbers in hours.items():
        for is_lost, number in enumerate(numbers):
            summed[at - at % width, bool(is_lost)] += number
    first, last = first - first % width, last - last % width + width
    highest = max(summed[at, False] + summed[at, True] for at, _ in summed)
    span = last - first
    bars = [
        {
            "at": _iso(at),
            "left": 100 * (at - first) / span,
            "width": 100 * width / span,
            "kept": 100 * summed[at, False] / highest,
            "lost": 100 * summed[at, True] / highest,
            "rows": summed[at, False] + summed[at, True],
            "lost_rows": summed[at, True],
        }
        for at in sorted({at for at, _ in summed})
    ]
    return {
        "bars": bars,
        "highest": highest,
        "unit": "hour" if width == HOUR_MS else "day",
        "from": _iso(first),
        "to": _iso(last),
    }


def write(audit: Audit, path: Path) -> None:
    """Write the report as HTML or JSON, by the end of the name of the file."""
    content = html(audit) if path.suffix == ".html" else json.dumps(document(audit), indent=1)
    path.write_text(content)
