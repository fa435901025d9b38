"""A real Firefox, controlled through WebDriver BiDi."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import until

NAMES = ("firefox-esr", "firefox")
LISTENING = re.compile(r"WebDriver BiDi listening on (\S+)")
PATIENCE_S = 60


class NoFirefox(Exception):
    """No Firefox was found. The message says how to install one."""


def executable() -> str:
    """Return the path of Firefox; raise NoFirefox if none is installed."""
    found = os.environ.get("FIREFOX") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoFirefox("Firefox was not found: run apt-get install firefox-esr, or set FIREFOX to its path.")
    return found


class Firefox:
    """A window of Firefox.

    Attributes:
        errors: Errors of scripts and of the console.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent = 0
        self.errors: list[str] = []
        self._call("session.new", capabilities={})
        self._call("session.subscribe", events=["log.entryAdded"])
        self._window = self._call("browsingContext.create", type="window")["context"]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        self._connection.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE_S))
            if message["type"] == "event":
                if message["params"]["level"] == "error":
                    self.errors.append(message["params"]["text"])
            elif message["id"] == self._sent:
                assert message["type"] == "success", message
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._call("browsingContext.navigate", context=self._window, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, converted through JSON."""
        target = {"context": self._window}
        script = f"JSON.stringify({expression})"
        answer = self._call("script.evaluate", target=target, expression=script, awaitPromise=False)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        answer = self._call("browsingContext.captureScreenshot", context=self._window, origin="document")
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._call("browser.close")


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """Start Firefox with an empty profile for the duration of a block; raise NoFirefox if none is installed."""
    arguments = [executable(), "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    log = profile / "firefox.log"
    with log.open("w") as output, subprocess.Popen(arguments, stdout=output, stderr=output) as process:
        try:
            until(lambda: LISTENING.search(log.read_text()) is not None, "Firefox listens", PATIENCE_S)
            [address] = LISTENING.findall(log.read_text())
            with connect(f"{address}/session", max_size=None) as connection:
                window = Firefox(connection)
                yield window
                window.close()
        except BaseException:
            process.kill()
            raise
