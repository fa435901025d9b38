"""A real Chromium, and a visitor that records the errors of its pages."""

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
    """No Chromium was found. The message says how to install one."""


def executable() -> str:
    """Return the path of Chromium; raise NoChromium if none is installed."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoChromium("Chromium was not found: run apt-get install chromium, or set CHROMIUM to its path.")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium for the duration of a block; raise NoChromium if none is installed."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visitor:
    """A browser with windows that records errors of scripts, violations of the content security policy, and dialogs."""

    browser: Browser
    _messages: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)
    _windows: list[Any] = field(default_factory=list)

    def window(self, **options: Any) -> Page:
        """Open a page in a new window; ``options`` are Playwright's, such as viewport, colour scheme or time zone."""
        context = self.browser.new_context(**({"viewport": DESK, "locale": "en-GB"} | options))
        context.set_default_timeout(PATIENCE_MS)
        self._windows.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self._messages.append(str(error)))
        page.on("console", lambda message: self._messages.append(message.text) if message.type == "error" else None)
        page.on("dialog", self._dismiss)
        return page

    def _dismiss(self, dialog: Dialog) -> None:
        self._messages.append(dialog.message)
        dialog.dismiss()

    def expect(self, message: str) -> None:
        """Accept errors that match this pattern."""
        self._expected.append(message)

    @property
    def wrong(self) -> list[str]:
        """The recorded errors that no expected pattern matches."""
        return [
            message for message in self._messages if not any(re.search(pattern, message) for pattern in self._expected)
        ]

    def leave(self) -> None:
        for context in self._windows:
            context.close()


def shoot(visitor: Visitor, address: str, name: str, settled: str, **options: Any) -> None:
    """Save screenshots of an address in light and dark mode, once an element matches the selector ``settled``."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    page = visitor.window(**options)
    page.goto(address)
    page.locator(settled).first.wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=SCREENS / f"{name}-{scheme}.png", full_page=True)
    page.context.close()
