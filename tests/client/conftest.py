"""Fixtures for the client's protocol without Spark: a coordinator in this process and a virtual clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import VirtualClock
from tests.support.drivers import Runs
from tests.support.local import LocalCoordinator
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.protocol import session


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def own(valkey: EmbeddedValkey, clock: VirtualClock) -> Iterator[LocalCoordinator]:
    """Start a coordinator that the test can stop, empty and restore."""
    with LocalCoordinator(valkey, clock) as coordinator:
        yield coordinator


@pytest.fixture
def runs(tmp_path: Path, clock: VirtualClock) -> Runs:
    return Runs(tmp_path / "checkpoint", clock)


@pytest.fixture(autouse=True)
def _send_the_backlog_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FLUSH_EVERY_S", 0.01)
