"""Starts of ``tidegate serve`` that must fail."""

import os
import subprocess
import sys
from pathlib import Path


def fails(tmp_path: Path, *arguments: str, **settings: str) -> str:
    """Start the coordinator with settings that it must refuse; return the line that it prints."""
    lines = refused(tmp_path, *arguments, **settings)
    assert len(lines) == 1, lines
    return lines[0]


def refused(tmp_path: Path, *arguments: str, **settings: str) -> list[str]:
    """Start the coordinator with settings that it must refuse; return the lines that it prints, without a traceback."""
    environment = os.environ | {"TIDEGATE_DATA_DIR": str(tmp_path / "data"), "TIDEGATE_PORT": "0"} | settings
    ended = subprocess.run(
        [sys.executable, "-m", "tidegate", "serve", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()
