"""The programs of docs/explanation/spark.md prove what the page says of Spark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guides import ROOT
from tests.support.runs import environment

PAGE = (ROOT / "docs" / "explanation" / "spark.md").read_text()
PROGRAMS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
RUN = "import runpy, sys; [(print(name, flush=True), runpy.run_path(name)) for name in sys.argv[1:]]"


@pytest.mark.timeout(300)
def test_the_programs_prove_the_page(tmp_path: Path) -> None:
    """One process runs all, because Spark takes some seconds to start."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    names = [name for name in PROGRAMS if name != "rules.py"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *names],
        cwd=tmp_path,
        env=environment(PYTHONPATH=f"{ROOT}:{tmp_path}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.split() == names
    assert len(names) == 6


def test_the_programs_are_short() -> None:
    assert all(len(text.splitlines()) <= 20 for name, text in PROGRAMS.items() if name != "rules.py")
