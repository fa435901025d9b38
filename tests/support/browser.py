"""A real Chromium, and what every test of the page wants to know of it."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

SCREENS = Path(__file__).parents[2] / "out" / "screens"
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
PATIENCE_MS = 60_000


class NoChromium(Exception):
    """The message says where one comes from."""


def executable() -> str:
    """:raises NoChromium: where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoChromium("No Chromium: apt-get install chromium, or name one in CHROMIUM.")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """:raises NoChromium: where there is none."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visitor:
    """Somebody with a window. Whatever goes wrong in it (an error of a script, something that the policy of the page
    blocks, a dialog) is noted.
    """

    browser: Browser
    _said: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)
    _windows: list[Any] = field(default_factory=list)

    def window(self, **options: Any) -> Page:
        """:param options: of the window: colour scheme, size, time zone, …"""
        context = self.browser.new_context(**({"viewport": DESK, "locale": "en-GB"} | options))
        context.set_default_timeout(PATIENCE_MS)
        self._windows.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self._said.append(str(error)))
        page.on("console", lambda said: self._said.append(said.text) if said.type == "error" else None)
        page.on("dialog", self._dismiss)
        return page

    def _dismiss(self, dialog: Dialog) -> None:
        self._said.append(dialog.message)
        dialog.dismiss()

    def expect(self, said: str) -> None:
        """What goes wrong on purpose: a pattern of the messages that are no mistake."""
        self._expected.append(said)

    @property
    def wrong(self) -> list[str]:
        return [said for said in self._said if not any(re.search(pattern, said) for pattern in self._expected)]

    def leave(self) -> None:
        for context in self._windows:
            context.close()


def shoot(visitor: Visitor, address: str, name: str, settled: str, **options: Any) -> None:
    """Pictures of an address, in light and in dark, once there is an element like ``settled``."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    page = visitor.window(**options)
    page.goto(address)
    page.locator(settled).first.wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=SCREENS / f"{name}-{scheme}.png", full_page=True)
    page.context.close()
