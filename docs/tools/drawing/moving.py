"""The animated figure: a watermark on the axis of event time, held by a slow substream.

The animation is CSS within the SVG file. It works without a script and without a network. If the reader prefers reduced
motion, the figure shows the end of the run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from docs.tools.drawing.annotations import EDGE, OPEN
from docs.tools.drawing.paint import ALONE, digest_of
from docs.tools.drawing.scene import Event, Scene, Seen
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag

LAG, IDLE_TIMEOUT, WINDOW = 5, 14, 10
BEGIN, END = 9, 60
SLOW = "HNL"
EVENTS = {
    "ATL": [(at, at - 2 - at * 5 % 4) for at in range(10, END, 3)],
    "BOS": [(at, at - 1 - at * 3 % 5) for at in range(11, END, 4)],
    "ORD": [(at, at - 2 - at * 7 % 5) for at in range(12, END, 3)],
    SLOW: [(10, 5), (14, 8), (18, 12), (22, 17), (26, 21), (50, 27), (53, 50), (56, 53), (59, 55)],
}
SCENE = Scene(
    "A slow substream holds the watermark",
    JobConfig(LimitingLag(LAG), idle_timeout_ms=IDLE_TIMEOUT),
    EVENTS,
    END,
    window_size=WINDOW,
    windows_end=END,
)

SECONDS = 24
MOVING = 85.0
"""Share of the animation in which time passes, in per cent. The end of the run is shown in the rest."""
GLIDE = 0.8
"""Time that a line needs to reach its new position, in units of processing time."""
WIDTH, HEIGHT = 760, 292
LEFT, RIGHT = 106, 746
STRIP, LANES, LANE, AXIS = 30, 82, 30, 196
"""Heights: the top of the windows, the first lane, the distance of lanes, and the axis."""

FAST_COLOUR, SLOW_COLOUR, RED = "#2b8fb3", "#c4762b", "#d9503f"
"""Colours with enough contrast on a light and on a dark page."""

Steps = Sequence[tuple[int, str]]
"""The values of a property, each with the processing time from which it applies."""


def x(event_time: float) -> float:
    """Return the horizontal position of an event time."""
    return round(LEFT + event_time * (RIGHT - LEFT) / END, 1)


def percent(now: float) -> float:
    """Return the share of the animation, in per cent, at which it shows a processing time."""
    return round(max(0.0, min(MOVING, (now - BEGIN) * MOVING / (END - BEGIN))), 2)


@dataclass
class Drawing:
    """The elements of the figure, and their animations."""

    elements: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    keyframes: list[str] = field(default_factory=list)

    def add(self, element: str) -> None:
        self.elements.append(element)

    def animated(self, content: str, style: Callable[[str], str], steps: Steps, glide: float = 0.05) -> None:
        """Add a group whose style changes with processing time. Its static style is that of the last step."""
        name = f"tide-{len(self.keyframes)}"
        frames = [f"0%{{{style(steps[0][1])}}}"]
        for (_, before), (at, after) in pairwise(steps):
            frames += [f"{percent(at)}%{{{style(before)}}}", f"{percent(at + glide)}%{{{style(after)}}}"]
        last = style(steps[-1][1])
        self.keyframes.append(f"@keyframes {name}{{{''.join(frames)}100%{{{last}}}}}")
        self.rules.append(f".{name}{{animation-name:{name}}}")
        self.add(f'<g class="tide-a {name}" style="{last}">{content}</g>')


def changes(line: Iterable[tuple[int, object]], text: Callable[[object], str]) -> Steps:
    """Return the values of a line as text, without repetitions."""
    steps: list[tuple[int, str]] = []
    for now, value in line:
        if not steps or steps[-1][1] != text(value):
            steps.append((now, text(value)))
    return steps


def opacity(value: str) -> str:
    return f"opacity:{value}"


def shift(value: str) -> str:
    return f"transform:translateX({value}px)"


def shown(condition: bool) -> str:
    return str(int(condition))


def words(at_x: float, at_y: float, content: str, anchor: str = "start", more: str = "") -> str:
    """Return a text element."""
    return f'<text x="{at_x}" y="{at_y}" text-anchor="{anchor}"{more}>{escape(content)}</text>'


def draw(seen: Seen) -> str:
    """Return the figure of a run."""
    drawing = Drawing()
    _axis(drawing)
    _windows(drawing, seen)
    for number, name in enumerate(EVENTS):
        _lane(drawing, seen, name, LANES + number * LANE)
    _watermark(drawing, seen)
    _captions(drawing, seen)
    _legend(drawing)
    motion = "".join(drawing.keyframes + drawing.rules)
    style = (
        f"@media (prefers-reduced-motion: no-preference){{{motion}"
        f".tide-a{{animation-duration:{SECONDS}s;animation-iteration-count:infinite;animation-timing-function:linear}}"
        ".tide:hover .tide-a{animation-play-state:paused}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:dc="http://purl.org/dc/elements/1.1/" width="{WIDTH}" '
        f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
        f"<style>{ALONE}</style><style>{style}</style>"
        f"<metadata><dc:description>{digest(seen)}</dc:description></metadata>"
        f'<defs><clipPath id="tide-plot"><rect x="{LEFT}" width="{RIGHT - LEFT}" height="{HEIGHT}"/></clipPath>'
        f'<clipPath id="tide-line"><rect x="{LEFT - 8}" width="{WIDTH - LEFT}" height="{HEIGHT}"/></clipPath></defs>'
        f'<g class="tide" fill="currentColor"><rect width="{WIDTH}" height="{HEIGHT}" fill="none" '
        'pointer-events="all"/>\n' + "\n".join(drawing.elements) + "\n</g></svg>\n"
    )


def digest(seen: Seen) -> str:
    """Return the hash of a run and of what the figure derives from it."""
    return digest_of(repr((seen.digest(), seen.holders, seen.idle)))


def write(path: Path) -> None:
    path.write_text(draw(SCENE.play()))


def _axis(drawing: Drawing) -> None:
    for time in range(0, END + 1, WINDOW):
        drawing.add(
            f'<line x1="{x(time)}" x2="{x(time)}" y1="{STRIP + 24}" y2="{AXIS}" stroke="currentColor" opacity="0.15"/>'
        )
        drawing.add(words(x(time), AXIS + 15, str(time), "middle", ' opacity="0.8"'))
    drawing.add(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{AXIS}" y2="{AXIS}" stroke="currentColor" opacity="0.6"/>')
    drawing.add(words(LEFT - 12, AXIS + 15, "event time", "end", ' opacity="0.8"'))


def _windows(drawing: Drawing, seen: Seen) -> None:
    drawing.add(words(LEFT - 12, STRIP + 16, "windows", "end", ' opacity="0.8"'))
    for window in seen.windows:
        left, width = x(window.begin), round(x(window.end) - x(window.begin) - 3, 1)
        box = f'<rect x="{left + 1.5}" y="{STRIP}" width="{width}" height="24" rx="3"'
        label = f"[{window.begin}, {window.end})"
        drawing.add(f'{box} fill="none" stroke="currentColor" opacity="0.35"/>')
        open_label, closed_label = (
            words(left + 1.5 + width / 2, STRIP + 16, text, "middle") for text in (f"{label} open", f"{label} closed")
        )
        closed = f'{box} fill="{EDGE}" fill-opacity="0.3" stroke="{EDGE}"/>{closed_label}'
        if window.closes is None:
            drawing.add(open_label)
            continue
        drawing.animated(open_label, opacity, [(BEGIN, "1"), (window.closes, "0")])
        drawing.animated(closed, opacity, [(BEGIN, "0"), (window.closes, "1")])


def _lane(drawing: Drawing, seen: Seen, name: str, y: int) -> None:
    colour = SLOW_COLOUR if name == SLOW else FAST_COLOUR
    drawing.add(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" opacity="0.2"/>')
    drawing.add(words(LEFT - 12, y + 4, name, "end", ' font-weight="bold"'))
    holds = changes(seen.holders, lambda holder: shown(holder == name))
    if len(holds) > 1 or holds[0][1] == "1":
        drawing.animated(words(4, y + 4, "holds W", more=f' fill="{RED}"'), opacity, holds)
    if any(is_idle for _, is_idle in seen.idle[name]):
        steps = changes(seen.idle[name], lambda is_idle: shown(bool(is_idle)))
        drawing.animated(words(4, y + 4, "idle", more=' opacity="0.8"'), opacity, steps)
    for event in seen.events:
        if event.substream == name:
            drawing.animated(_row(event, y, colour), opacity, [(BEGIN, "0"), (event.at, "1")], 0.3)
    bar = f'<rect x="-1.5" y="{y - 10}" width="3" height="20" fill="{colour}"/>'
    _moving(drawing, bar, seen.watermarks[name])


def _row(event: Event, y: int, colour: str) -> str:
    at = x(event.event_time)
    if event.fate == "on time":
        return f'<circle cx="{at}" cy="{y}" r="4" fill="{colour}"/>'
    return f'<path d="M{at - 5} {y - 5}l10 10m0 -10l-10 10" stroke="{RED}" stroke-width="2.5" fill="none"/>'


def _moving(drawing: Drawing, content: str, line: Iterable[tuple[int, int | None]], clip: str = "plot") -> None:
    """Add content that moves along a line of event times. It is left of the plot while the line has no value."""
    steps = changes(line, lambda value: str(x(value) if isinstance(value, int) else LEFT - 20))
    drawing.add(f'<g clip-path="url(#tide-{clip})">')
    drawing.animated(content, shift, steps, GLIDE)
    drawing.add("</g>")


def _watermark(drawing: Drawing, seen: Seen) -> None:
    """Add W, and the shade over complete event times. The line leaves out the windows, whose labels it would cross."""
    top = STRIP + 24
    shade = f'<rect x="{LEFT - RIGHT}" y="{top}" width="{RIGHT - LEFT}" height="{AXIS - top}"'
    _moving(drawing, f'{shade} fill="{OPEN}" opacity="0.14"/>', seen.emitted)
    line = f'<path d="M0 {STRIP - 8}V{STRIP}M0 {top}V{AXIS}" stroke="currentColor" stroke-width="2.5"/>'
    _moving(drawing, line + words(0, STRIP - 12, "W", "middle", ' font-weight="bold"'), seen.emitted, "line")


def _captions(drawing: Drawing, seen: Seen) -> None:
    """Add a sentence for each part of the run, and a bar for processing time."""
    rows = [event.at for event in seen.events if event.substream == SLOW]
    late, late_time = next((event.at, event.event_time) for event in seen.events if event.fate == "late")
    closed = next(f"[{one.begin}, {one.end})" for one in seen.windows if one.begin <= late_time < one.end)
    idle = next(now for now, is_idle in seen.idle[SLOW] if is_idle)
    silent = max(at for at in rows if at < idle) + 3
    texts = (
        (BEGIN, f"The watermark of a substream is {LAG} below its max event time. W is the lowest of the four."),
        (silent, f"{SLOW} is silent and holds W. No row of the other substreams is late, and their windows stay open."),
        (
            idle,
            f"{SLOW} has been silent for {IDLE_TIMEOUT}, the idle timeout. W advances without it, and windows close.",
        ),
        (
            late,
            f"{SLOW} reports again. Its first row belongs to the closed window {closed}, and is late.",
        ),
    )
    begins = [begin for begin, _ in texts]
    for number, (begin, text) in enumerate(texts):
        steps = [(BEGIN, shown(number == 0)), *([(begin, "1")] if number else [])]
        if number + 1 < len(texts):
            steps.append((begins[number + 1], "0"))
        drawing.animated(words(LEFT, AXIS + 42, text, more=' font-size="13"'), opacity, steps)
    y = AXIS + 56
    drawing.add(words(LEFT - 12, y + 6, "processing time", "end", ' font-size="11" opacity="0.8"'))
    drawing.add(f'<rect x="{LEFT}" y="{y}" width="{RIGHT - LEFT}" height="4" rx="2" opacity="0.15"/>')
    bar = f'<rect x="{LEFT - RIGHT}" y="{y}" width="{RIGHT - LEFT}" height="4" rx="2" opacity="0.5"/>'
    drawing.add('<g clip-path="url(#tide-plot)">')
    drawing.animated(bar, shift, [(BEGIN, str(LEFT)), (BEGIN, str(RIGHT))], END - BEGIN)
    drawing.add("</g>")


def _legend(drawing: Drawing) -> None:
    y = AXIS + 84
    late = Event("", 0, 0, "late")
    entries = (
        (0, f'<circle cx="4" cy="{y - 4}" r="4" fill="{FAST_COLOUR}"/>', "row on time"),
        (106, f'<g transform="translate({4 - LEFT})">{_row(late, y - 4, RED)}</g>', "late row"),
        (192, f'<rect x="3" y="{y - 12}" width="3" height="16" fill="{FAST_COLOUR}"/>', "watermark of a substream"),
        (380, f'<path d="M4 {y - 13}V{y + 4}" stroke="currentColor" stroke-width="2.5"/>', "W, watermark of the job"),
    )
    for left, sign, text in entries:
        drawing.add(f'<g transform="translate({LEFT + left})">{sign}{words(14, y, text)}</g>')
