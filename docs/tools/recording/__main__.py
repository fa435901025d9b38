"""Run the demo and take five screenshots of the operators' page: ``python -m docs.tools.recording``."""

import os
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize

from tests.support.browser import NoChromium, chromium

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
SIZE: ViewportSize = {"width": 1100, "height": 860}
COLOURS = 64
PAGE = re.compile(r"watch the job at (\S+)")
BATCH = re.compile(r"batch +(\d+)/(\d+)")
MOMENTS = {
    "1-waiting": "before the first commit: the job has no watermark yet",
    "2-first-hours": "the first hours are complete",
    "3-held": "halfway: the slowest destination holds the watermark",
    "4-nearly": "near the end",
    "5-complete": "the input has ended",
}
AT = {"2-first-hours": 0.15, "3-held": 0.5, "4-nearly": 0.9}
"""Share of the batches after which each screenshot is taken."""


def main() -> int:
    environment = os.environ | {"DEMO_OUT": str(ROOT / "out" / "recording"), "PYTHONUNBUFFERED": "1"}
    PICTURES.mkdir(exist_ok=True)
    try:
        with chromium() as browser:
            page = browser.new_page(viewport=SIZE)
            with subprocess.Popen(
                [sys.executable, "-m", "examples.flights"], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
            ) as demo:
                _record(demo, page)
            return demo.returncode
    except NoChromium as error:
        print(f"recording: {error}", file=sys.stderr)
        return 1


def _record(demo: "subprocess.Popen[str]", page: Page) -> None:
    assert demo.stdout is not None
    left = dict(AT)
    for line in demo.stdout:
        print(line, end="", flush=True)
        if address := PAGE.search(line):
            # The job does not exist yet. The page reloads by itself as soon as the job exists.
            page.goto(address.group(1))
        if "Starting Spark" in line:
            page.locator(".badge.no_watermark").wait_for(timeout=300_000)
            page.get_by_text("departures").first.wait_for(timeout=300_000)
            _take(page, "1-waiting")
        elif batch := BATCH.search(line):
            share = int(batch.group(1)) / int(batch.group(2))
            for moment, at in list(left.items()):
                if share >= at:
                    del left[moment]
                    _take(page, moment)
            if share == 1:
                page.locator(".badge.complete").wait_for(timeout=300_000)
                _take(page, "5-complete")


def _take(page: Page, moment: str) -> None:
    print(f"  picture: {MOMENTS[moment]}", flush=True)
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{moment}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
