"""Debian programs that tests run."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
"""The library of Debian's package ``libfaketime``, which changes the clock of one process."""


def tool(name: str, package: str) -> str:
    """Return the path of a program. If it is missing, skip the test, or fail in CI."""
    found = shutil.which(name)
    if found:
        return str(found)
    return absent(f"{name} was not found: run apt-get install {package}.")


def absent(why: str) -> str:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def run(*command: str, timeout_s: float = 120, **options: Any) -> str:
    """Run a command and return its output; fail if the command fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)
