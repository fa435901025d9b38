"""Builds of the distributions with ``make dist``, in copies of the work tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.programs import run, tool

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"service": "tidegate", "spark_client": "tidegate_spark", "integrations/airflow": "tidegate_airflow"}
"""The Python packages of the distributions, by folder."""
FILE_NAMES = DISTRIBUTIONS | {"integrations/airflow": "airflow_provider_tidegate"}
"""The names of the distributions in the names of their files, by folder."""
_INPUTS = ("Makefile", "requirements.lock", *DISTRIBUTIONS)
_COMMITTED_AT = "2013-01-01T12:00:00+00:00"
_AUTHOR = {"NAME": "Test", "EMAIL": "test@example.com", "DATE": _COMMITTED_AT}


def files(folder: str) -> list[str]:
    """Return the paths of a folder's files in the work tree, relative to the root and without ignored files."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder)
    listed = run(*command, cwd=ROOT).rstrip("\0").split("\0")
    return sorted(name for name in listed if (ROOT / name).exists())


def build(directory: Path, modified_at: int, umask: int) -> dict[str, bytes]:
    """Build a copy of the work tree with ``make dist``.

    The copy is a repository with one commit, so the result includes changes that are not committed yet.

    Args:
        directory: Directory of the copy, which must not exist.
        modified_at: Modification time of all files, as a Unix time.
        umask: Permissions that new files do not get.

    Returns:
        The contents of the wheels and sdists, by file name.
    """
    for name in (name for folder in _INPUTS for name in files(folder)):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, directory / name)
        os.utime(directory / name, (modified_at, modified_at))
    (directory / ".gitignore").write_text("dist/\nout/\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "MAKE", "MFLAGS"))}
    environment |= {f"GIT_{who}_{name}": value for who in ("AUTHOR", "COMMITTER") for name, value in _AUTHOR.items()}
    # The environment of the tests is complete. Without --assume-old, make would set it up again if the copy is newer.
    make = (tool("make", "make"), f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.ready", "dist")
    commit = ("git", "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "test")
    for command in (("git", "init", "--quiet"), ("git", "add", "--all"), commit, make):
        run(*command, cwd=directory, env=environment, umask=umask)
    return {path.name: path.read_bytes() for path in (directory / "dist").iterdir()}


def install(environment: Path, *requirements: str) -> None:
    """Create a virtual environment and install packages at the locked versions.

    Args:
        environment: Directory of the environment, which must not exist.
        requirements: Wheels with their extras.
    """
    uv = f"{sys.prefix}/bin/uv"
    run(uv, "venv", "--quiet", "--python", sys.executable, str(environment))
    command = [uv, "pip", "install", "--quiet", "--python", f"{environment}/bin/python"]
    command += ["--constraint", str(ROOT / "requirements.lock"), *requirements]
    # The set-up leaves all packages in the cache of uv, except if pip installed them.
    if subprocess.run([*command, "--offline"], capture_output=True, timeout=300).returncode != 0:
        run(*command, timeout_s=300, env=os.environ | {"UV_SYSTEM_CERTS": "1"} | _index())


def _index() -> dict[str, str]:
    """Return the setting that makes uv use the index of pip; empty if pip uses the default index."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "get", "global.index-url"]
    found = subprocess.run(pip, capture_output=True, text=True, timeout=60).stdout.strip()
    return {"UV_DEFAULT_INDEX": found} if found and "UV_DEFAULT_INDEX" not in os.environ else {}
