"""HTTP against the real coordinator."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tidegate_spark.testing import CoordinatorProcess

RULES = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
RUN: dict[str, Any] = {"query_id": "checkpoint", "run_id": "run-1"}


@pytest.fixture(scope="session")
def http(tidegate: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tidegate.url, timeout=30) as client:
        yield client


@pytest.fixture
def make_job(http: httpx.Client, job: str) -> Callable[..., str]:
    """Creates the job of this test; returns its path."""

    def make(**rules: Any) -> str:
        created = http.put(f"/v1/jobs/{job}", json=RULES | rules, headers={"If-None-Match": "*"})
        assert created.status_code == 201, created.text
        return f"/v1/jobs/{job}"

    return make


def read(http: httpx.Client, path: str, **parameters: Any) -> dict[str, Any]:
    """What is to be read there."""
    answer = http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
