"""Large bodies are validated in another process, with the answers of small ones."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pydantic import BaseModel
from starlette.types import Message

from tests.support.api import CONFIG
from tests.support.bodies import body_models
from tests.support.waiting import until
from tidegate.http import bodies
from tidegate.http.actions import RestoreRequest
from tidegate.http.bodies import BodyReader
from tidegate.http.problems import Problem
from tidegate.http.schemas import CommitRequest, Report
from tidegate.store.embedded import EmbeddedValkey
from tidegate.views.config import ConfigDocument
from tidegate_spark.testing import CoordinatorProcess

BATCH = {"query": "q", "query_id": "i", "run_id": "r", "batch_id": 1, "partition": 3}
NAMES = [f"\u00e9, {number}" for number in range(2500)]
NUMBERS = [*range(2500)]
ROWS = {
    "substreams": NAMES,
    "on_time": NUMBERS,
    "late": NUMBERS,
    "null_event_time": NUMBERS,
}
BODIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "report": (Report, {"substreams": NAMES, "max_event_times": [None, *NUMBERS[1:]], "watermark_token": "1.2.x"}),
    "partition": (
        Report,
        {
            "substreams": NAMES,
            "max_event_times": [*NUMBERS[1:], None],
            "counts": NUMBERS,
            "delays": [[[0, 1], [3, 2]] if number % 3 else None for number in NUMBERS],
            "batch": BATCH,
        },
    ),
    "commit": (
        CommitRequest,
        {
            "query_id": "i",
            "run_id": "r",
            "rows": ROWS | {"hours": [[[number % 7, number, 0, 1]] if number else [] for number in NUMBERS]},
            "reported": 7,
        },
    ),
    "restore": (RestoreRequest, {"substreams": NAMES, "watermarks": NUMBERS, "query": "q", "reason": "moved"}),
    "integral floats": (Report, {"substreams": NAMES, "max_event_times": [float(number) for number in NUMBERS]}),
    "wrong type": (Report, {"substreams": NAMES, "max_event_times": [*NUMBERS[1:], "x"]}),
    "wrong length": (Report, {"substreams": NAMES, "max_event_times": NUMBERS[1:]}),
    "repeated name": (Report, {"substreams": [*NAMES[1:], NAMES[5]], "max_event_times": NUMBERS}),
    "unknown members": (Report, {str(number): 0 for number in range(2000)}),
}


def running(check: Callable[[BodyReader], Coroutine[Any, Any, None]]) -> None:
    """Run a check with a reader whose process ends afterwards."""

    async def run() -> None:
        reader = BodyReader()
        try:
            await check(reader)
        finally:
            await reader.aclose()

    asyncio.run(run())


async def answer(reader: BodyReader, model: type[BaseModel], body: object) -> tuple[object, ...]:
    """Return what the service gets of a body: its members and its pieces, or the problem."""

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    try:
        found: Any = await reader.read(receive, model, "q")
    except Problem as problem:
        return problem.status, problem.code, problem.detail, problem.members
    pieces = found.pieces("q").encoded()
    others = found.converted("q").model_dump()
    return others, [bytes(piece) for piece in pieces.each], pieces.ranges, pieces.size, pieces.others


@pytest.mark.parametrize("name", BODIES)
def test_a_large_body_gets_the_answer_of_a_small_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, body = BODIES[name]

    async def check(reader: BodyReader) -> None:
        large = await answer(reader, model, body)
        assert reader._process is not None  # noqa: SLF001
        monkeypatch.setattr(bodies, "MIN_BYTES", 1 << 30)
        monkeypatch.setattr(bodies, "MAX_COLONS", 1 << 30)
        assert large == await answer(reader, model, body)

    running(check)


def test_a_large_configuration_is_that_of_a_small_one() -> None:
    body = CONFIG | {"overrides": [{"substreams": "HNL*", "policy": CONFIG["policy"]}]}

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode() + b" " * bodies.MIN_BYTES}

    async def check(reader: BodyReader) -> None:
        document = await reader.read(receive, ConfigDocument)
        assert reader._process is not None  # noqa: SLF001
        expected = ConfigDocument.model_validate(body)
        assert (document, document.config) == (expected, expected.config)

    running(check)


def test_every_body_can_be_large() -> None:
    """The process gets the model of each call, and its answer is that of this process."""

    async def check(reader: BodyReader) -> None:
        for model in body_models():
            with pytest.raises(Problem, match=r"is missing|not a known member"):
                await reader.read(unknown, model)
        assert reader._process is not None  # noqa: SLF001

    async def unknown() -> Message:
        return {"type": "http.request", "body": b'{"unknown": "' + b"x" * bodies.MIN_BYTES + b'"}'}

    running(check)


def test_a_cancelled_call_does_not_disturb_the_next_one() -> None:
    """A client may disconnect while its body is validated. The next body gets its own answer, of the same process."""
    model, body = BODIES["report"]

    async def check(reader: BodyReader) -> None:
        expected = await answer(reader, *BODIES["commit"])
        process = reader._process  # noqa: SLF001
        for wait_s in (0, 0.001, 0.01):
            call = asyncio.create_task(answer(reader, model, body))
            await asyncio.sleep(wait_s)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await answer(reader, *BODIES["commit"]) == expected
            assert reader._process is process  # noqa: SLF001

    running(check)


def test_a_process_that_has_died_is_replaced() -> None:
    """The kernel may kill it for its memory, also during a call."""
    model, body = BODIES["report"]

    async def check(reader: BodyReader) -> None:
        expected = await answer(reader, model, body)
        for is_during in (False, True):
            assert reader._process is not None  # noqa: SLF001
            process = psutil.Process(reader._process.pid)  # noqa: SLF001
            process.suspend()
            call = asyncio.create_task(answer(reader, model, body))
            await asyncio.sleep(0.1 if is_during else 0)
            process.kill()
            assert await call == expected

    running(check)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_the_coordinator(
    tmp_path: Path, valkey: EmbeddedValkey, job_name: str, end: signal.Signals
) -> None:
    """Also if the coordinator is killed, which cannot end it then."""
    process = CoordinatorProcess(tmp_path, redis_url=valkey.url)
    with process as coordinator, httpx.Client(base_url=coordinator.url, timeout=60) as http:
        http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        report = {"substreams": NAMES, "max_event_times": NUMBERS}
        answer = http.post(f"/v1/jobs/{job_name}:report", json=report).raise_for_status()
        assert answer.json()["watermark"] == -10
        [child] = [
            each for each in psutil.Process(coordinator.pid).children() if "tidegate.http.bodies" in each.cmdline()
        ]
        os.kill(coordinator.pid, end)
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its end")
