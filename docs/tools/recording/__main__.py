"""Take the screenshots of the operators' page: ``python -m docs.tools.recording``."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import FloatRect, Page

from docs.tools.recording.jobs import FLIGHTS, run_coordinator
from tests.support.browser import PHONE, NoChromium, Visitor, chromium
from tests.support.site import LIVE

PICTURES = Path(__file__).parents[2] / "pictures"
SCALE = 2
COLOURS = 256
MARGIN = 12
WIDTH, WIDE = 1000, 1120
HEIGHT = 900
JOB = f"/jobs/{FLIGHTS.job}?range=1d"


@dataclass(frozen=True)
class Picture:
    """A screenshot.

    Attributes:
        name: Name of the file.
        path: Path of the page.
        parts: Selectors of the first and the last element that it shows.
        width: Width of the window.
        scheme: Colour scheme.
        settled: Selector of an element that the page has once it is complete.
    """

    name: str
    path: str
    parts: tuple[str, str]
    width: int = WIDTH
    scheme: Literal["light", "dark"] = "light"
    settled: str = LIVE


ALL: Sequence[Picture] = (
    Picture("jobs", "/", ("header", "#jobs"), WIDE),
    Picture("held", JOB, ("h1", "#picture")),
    Picture("lag", JOB, ("#lag", "#lag")),
    Picture("late", JOB, ("#completeness", "#late")),
    Picture("history", JOB, ("#history", "#history"), scheme="dark"),
    Picture("phone", JOB, ("header", ".picture"), PHONE["width"], "dark"),
    Picture(
        "evict",
        f"/jobs/{FLIGHTS.job}/act/evict?query=departures&substream=HNL",
        ("h1", "form.act"),
        WIDE,
        settled="form.act",
    ),
)


def main() -> int:
    """Take all screenshots, and return the exit code."""
    PICTURES.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as directory, run_coordinator(Path(directory)) as url, chromium() as browser:
            visitor = Visitor(browser)
            for picture in ALL:
                _take(visitor, url, picture)
            return int(bool(visitor.wrong))
    except NoChromium as error:
        print(f"recording: {error}", file=sys.stderr)
        return 1


def _take(visitor: Visitor, url: str, picture: Picture) -> None:
    size = {"width": picture.width, "height": HEIGHT}
    page = visitor.window(viewport=size, device_scale_factor=SCALE, color_scheme=picture.scheme)
    page.goto(url + picture.path)
    page.locator(picture.settled).first.wait_for()
    taken = page.screenshot(full_page=True, clip=_between(page, *picture.parts))
    page.context.close()
    image = Image.open(BytesIO(taken)).convert("RGB")
    path = PICTURES / f"{picture.name}.png"
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {image.width} x {image.height}, {path.stat().st_size // 1000} kB", flush=True)


def _between(page: Page, first: str, last: str) -> FloatRect:
    """Return the part of the page from the first to the last element, with a margin, at the width of the window."""
    top, bottom = page.locator(first).first.bounding_box(), page.locator(last).first.bounding_box()
    size = page.viewport_size
    assert top and bottom and size
    y = max(0, top["y"] - MARGIN)
    return {"x": 0, "y": y, "width": size["width"], "height": bottom["y"] + bottom["height"] + MARGIN - y}


if __name__ == "__main__":
    sys.exit(main())
