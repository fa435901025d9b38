"""Programs from Debian that these tests ask for."""

import os
import shutil
import subprocess
from typing import Any

import pytest


def tool(name: str, package: str) -> str:
    """Where a program is; without it tests are passed over, but in no build."""
    found = shutil.which(name)
    if found:
        return str(found)
    return absent(f"No {name}: apt-get install {package}.")


def absent(why: str) -> str:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def run(*command: str, timeout_s: float = 120, **options: Any) -> str:
    """What a command says; it must end well."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)
