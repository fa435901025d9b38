"""Templates, and what they need: everything that is not markup of their own is escaped."""

import math
from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tidegate import __version__
from tidegate.escapes import visible
from tidegate.times import EARLIEST_MS, LATEST_MS, MS, for_how_long, shown
from tidegate.wording import At, Name, Piece, Since, Until, details, holding, loss, lost


def moment(at_ms: int | None) -> Markup:
    """A moment in UTC, to the second; exactly, where the pointer rests on it. The reader can have it in local time."""
    if at_ms is None:
        return Markup('<span class="none">none</span>')
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return Markup("{}").format(at_ms)
    exact, text = shown(at_ms), shown(at_ms // MS * MS)
    return Markup('<time data-ms="{}" datetime="{}" title="{}">{}</time>').format(
        at_ms, exact.replace(" ", "T"), exact, text
    )


def on_axis(at_ms: int) -> Markup:
    """The same in a drawing."""
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return Markup("{}").format(at_ms)
    return Markup('<tspan data-ms="{}">{}</tspan>').format(at_ms, shown(at_ms // MS * MS))


def ago(at_ms: int | None, now_ms: int) -> Markup:
    """How long ago, going on by itself."""
    if at_ms is None:
        return Markup('<span class="none">never</span>')
    return Markup('<span data-since="{}">{}</span>').format(at_ms, for_how_long(now_ms - at_ms))


def left(at_ms: int, now_ms: int) -> Markup:
    """How long until then, going down by itself."""
    return Markup('<span data-until="{}">{}</span>').format(at_ms, for_how_long(at_ms - now_ms))


def duration(ms: int | None) -> str:
    if ms is None:
        return "none"
    return f"-{for_how_long(-ms)}" if ms < 0 else for_how_long(ms)


def percent(share: float) -> str:
    """Rounded down: what is not all is not shown as all."""
    return f"{math.floor(share * 1_000_000) / 10_000:.4f}".rstrip("0").rstrip(".") + " %"


def told(pieces: Iterable[Piece], now_ms: int) -> Markup:
    """A sentence."""
    found = Markup()
    for piece in pieces:
        match piece:
            case At(ms):
                found += moment(ms)
            case Since(ms):
                found += ago(ms, now_ms)
            case Until(ms):
                found += left(ms, now_ms)
            case Name(text):
                found += Markup("<b>{}</b>").format(visible(text))
            case _:
                found += escape(visible(piece))
    return found


def _shown(value: Any) -> Any:
    """Escape the invisible characters of every text that is not markup of our own."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_templates = Environment(
    loader=PackageLoader("tidegate.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
    finalize=_shown,
)
_templates.globals["version"] = __version__
_templates.filters |= {
    "moment": moment,
    "on_axis": on_axis,
    "ago": ago,
    "left": left,
    "duration": duration,
    "percent": percent,
    "lost": lost,
    "instant": shown,
    "loss": loss,
    "told": told,
}
_templates.filters |= {"details": details, "holding": holding}


def render(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(**values)
