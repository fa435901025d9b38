"""Templates, their filters, and the addresses of pages. All values are escaped, except markup of filters."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tidegate import __version__
from tidegate.domain.calendar import DAY_MS
from tidegate.escapes import visible
from tidegate.times import EARLIEST_MS, LATEST_MS, MS, format_difference, format_duration, format_time
from tidegate.views.job_page import JobPageSelection
from tidegate.views.sentences import (
    KIND_NAMES,
    Elapsed,
    Fragment,
    Name,
    Remaining,
    Time,
    arrivals_text,
    exclusion_text,
    group_details,
    group_title,
    holder,
    holder_over_time,
    late_span_sentence,
    percent,
    plain_text,
    record_details,
    share_text,
)


def parameters(view: Any, **changes: Any) -> Mapping[str, str]:
    """Return the fields of a selection (a dataclass) with some changes, without those that have their default value."""
    wanted = asdict(replace(view, **changes))
    changed = {each.name: wanted[each.name] for each in fields(view) if wanted[each.name] != each.default}
    return {name: "true" if value is True else str(value) for name, value in changed.items()}


def job_link(job: str, view: JobPageSelection, section: str, **changes: Any) -> str:
    """Return the address of a section on the page of a job, for a selection with some changes."""
    wanted = parameters(view, **changes)
    return f"/jobs/{job}{'?' if wanted else ''}{urlencode(wanted)}#{section}"


def time(at_ms: int | None) -> Markup:
    """Return the markup of a time in UTC, in whole seconds. The ``title`` of the element shows the exact time.

    The script of the page can replace the text with the local time.
    """
    if at_ms is None:
        return Markup('<span class="none">none</span>')
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return Markup("{}").format(at_ms)
    exact, text = format_time(at_ms), format_time(at_ms // MS * MS)
    return Markup('<time data-ms="{}" datetime="{}" title="{}">{}</time>').format(
        at_ms, exact.replace(" ", "T"), exact, text
    )


FORMS = {"full": slice(None), "date": slice(10), "minute": slice(11, 16), "second": slice(11, 19)}
"""Parts of a printed time by the name of their form, which the script of the page uses too."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def tick(at_ms: int, step_ms: int) -> Markup:
    """Return the markup of a time on an axis with ticks every ``step_ms``. A midnight is a day, as in ``7 Jan``."""
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return Markup("{}").format(at_ms)
    if step_ms >= DAY_MS:
        form = "date"
    elif at_ms % DAY_MS == 0:
        form = "day"
    else:
        form = "minute" if step_ms >= 60 * MS else "second"
    full = format_time(at_ms)
    text = f"{int(full[8:10])} {MONTHS[int(full[5:7]) - 1]}" if form == "day" else full[FORMS[form]]
    return Markup('<tspan data-ms="{}" data-form="{}">{}</tspan>').format(at_ms, form, text)


def svg_time(at_ms: int) -> Markup:
    """Return the markup of a time in UTC, in whole seconds, for text in SVG."""
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return Markup("{}").format(at_ms)
    return Markup('<tspan data-ms="{}">{}</tspan>').format(at_ms, format_time(at_ms // MS * MS))


def elapsed(at_ms: int | None, now_ms: int) -> Markup:
    """Return the markup of the duration since a time. The script of the page updates it."""
    if at_ms is None:
        return Markup('<span class="none">never</span>')
    return Markup('<span data-since="{}">{}</span>').format(at_ms, format_duration(now_ms - at_ms))


def remaining(at_ms: int, now_ms: int) -> Markup:
    """Return the markup of the duration until a time. The script of the page updates it."""
    return Markup('<span data-until="{}">{}</span>').format(at_ms, format_duration(at_ms - now_ms))


def duration(ms: int | None) -> str:
    """Return a duration, with a minus sign if it is negative, or ``none`` for None."""
    return "none" if ms is None else format_difference(ms)


def number(count: int) -> str:
    """Return a number with thousands separators."""
    return f"{count:,}"


def words(identifier: str) -> str:
    """Return an identifier with spaces instead of underscores."""
    return identifier.replace("_", " ")


def sentence(fragments: Iterable[Fragment], now_ms: int) -> Markup:
    """Return the markup of a sentence."""
    markup = Markup()
    for fragment in fragments:
        match fragment:
            case Time(ms):
                markup += time(ms)
            case Elapsed(since_ms):
                markup += elapsed(since_ms, now_ms)
            case Remaining(until_ms):
                markup += remaining(until_ms, now_ms)
            case Name(text):
                markup += Markup("<b>{}</b>").format(visible(text))
            case _:
                markup += escape(visible(fragment))
    return markup


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_templates = Environment(
    loader=PackageLoader("tidegate.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
    finalize=_finalize,
)
_templates.globals["version"] = __version__
_filters = (time, svg_time, tick, elapsed, remaining, duration, number, words, percent, arrivals_text, sentence)
_templates.filters |= {function.__name__: function for function in _filters}
_templates.filters |= {
    "to_json": json.dumps,
    "plain_sentence": plain_text,
    "plain_time": format_time,
    "share": share_text,
    "holder": holder,
    "holder_over_time": holder_over_time,
    "kind_name": KIND_NAMES.__getitem__,
    "record_details": record_details,
    "group_title": group_title,
    "group_details": group_details,
    "late_span": late_span_sentence,
    "exclusion_text": exclusion_text,
}


def render(template: str, **values: Any) -> str:
    """Return the text of a template with these values."""
    return _templates.get_template(template).render(**values)
