"""Fixtures for tests that call the coordinator over HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import CONFIG
from tidegate_spark.testing import CoordinatorProcess


@pytest.fixture(scope="session")
def http(tidegate: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tidegate.url, timeout=30) as client:
        yield client


@pytest.fixture
def make_job(http: httpx.Client, job_name: str) -> Callable[..., str]:
    """Return a function that creates the test's job and returns its path."""

    def make(**config: Any) -> str:
        created = http.put(f"/v1/jobs/{job_name}", json=CONFIG | config, headers={"If-None-Match": "*"})
        assert created.status_code == 201, created.text
        return f"/v1/jobs/{job_name}"

    return make
