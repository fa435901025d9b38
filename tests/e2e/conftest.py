"""A stream that a test writes as it goes, and a job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.streams import LAG
from tidegate_spark import Gate, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


@pytest.fixture
def source(tmp_path: Path) -> FileBatches:
    """A stream of substreams ``k`` and event times ``t``."""
    return FileBatches(tmp_path / "input", "k string, t long")


@pytest.fixture
def gate(tidegate: CoordinatorProcess) -> Gate:
    """A job with a fixed lag of ten seconds."""
    return tidegate.gate(rules=limiting_lag(LAG))


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """A coordinator that a test may kill; its token key outlives whatever it loses."""
    settings = {"sweep_interval_ms": "50", "token_secret": "a secret that is long enough"}
    with CoordinatorProcess(tmp_path / "coordinator", 0, **settings) as process:
        yield process
