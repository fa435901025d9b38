"""Fixtures that run the command line in this process against the shared coordinator."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from tidegate.__main__ import cli
from tidegate_spark.testing import CoordinatorProcess

Run = Callable[..., Result]


@pytest.fixture
def run(tidegate: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TIDEGATE_URL", tidegate.url)
    monkeypatch.delenv("TIDEGATE_TOKEN", raising=False)

    def invoke(*arguments: str, status: int = 0, **options: Any) -> Result:
        ended = CliRunner().invoke(cli, arguments, **options)
        assert ended.exit_code == status, ended.output
        return ended

    return invoke


@pytest.fixture
def http(tidegate: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tidegate.url, timeout=30) as client:
        yield client
