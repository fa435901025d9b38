"""The engine, and the images. Each is built once per session."""

import logging
from collections.abc import Iterator

import pytest

from tests.support.compose import described
from tests.support.engine import Compose, Engine, running_engine
from tests.support.flights import EXACT
from tests.support.kafka import is_ready, without_maven

logging.getLogger("httpx").setLevel(logging.WARNING)  # the progress lines of make test-compose are at level INFO


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


@pytest.fixture(scope="session")
def coordinator_image(engine: Engine) -> str:
    return engine.build("coordinator", "tidegate:local")


@pytest.fixture(scope="session")
def flights_image(engine: Engine) -> str:
    return engine.build("flights", "tidegate-flights:local")


@pytest.fixture(scope="session")
def stand_ins(engine: Engine) -> None:
    if not is_ready():
        pytest.skip(without_maven())
    services = described({})["services"]
    names = {"valkey": "valkey", "haproxy": "proxy", "prometheus": "prometheus", "kafka": "kafka"}
    engine.make_stand_ins({stage: services[name]["image"] for stage, name in names.items()})


@pytest.fixture
def compose(engine: Engine, coordinator_image: str, flights_image: str, stand_ins: None) -> Iterator[Compose]:
    """Yield Docker Compose with the images of the shipped file. Its containers are removed afterwards."""
    composed = Compose(engine, **EXACT)
    try:
        yield composed
    finally:
        print(composed("logs", "--tail", "50"))
        engine.clear()
