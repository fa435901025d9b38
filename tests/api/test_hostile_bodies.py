"""Bodies that are made to cost the coordinator more than valid bodies of their size."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Message

from tests.support.api import CONFIG, problem
from tests.support.bodies import body_models
from tidegate.http.request import while_connected
from tidegate.http.schemas import RowAccounting
from tidegate_spark.testing import CoordinatorProcess

SIZE = 4 * 1024 * 1024 - 200
"""Size of a body slightly below the default limit."""
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a coordinator with the default limit on bodies, and return the URL of a path for reports."""
    with CoordinatorProcess(tmp_path_factory.mktemp("large")) as process:
        yield f"{process.url}/v1/jobs/flights:report"


def arrays(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all arrays in a schema."""
    if not schema:
        return
    if "$ref" in schema:
        yield from arrays(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if schema.get("type") == "array" and ("items" in schema or "prefixItems" in schema):
        yield schema
    for inner in (*schema.get("properties", {}).values(), schema.get("items", {}), *schema.get("anyOf", ())):
        yield from arrays(inner, root)


def bodies() -> list[type[BaseModel]]:
    return sorted({*body_models(), RowAccounting}, key=lambda model: model.__name__)


@pytest.mark.parametrize("model", bodies(), ids=lambda model: model.__name__)
def test_arrays_of_bodies_are_limited(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    for array in arrays(schema, schema):
        assert array["maxItems"] <= 100_000


@pytest.mark.parametrize("model", bodies(), ids=lambda model: model.__name__)
@pytest.mark.parametrize("item", ["[]", "0.5", "true", '"\\n"', "[0]", "[[]]"])
def test_validation_stops_early(model: type[BaseModel], item: str) -> None:
    """A column of a million invalid values would cause as many errors, which take seconds and 1600 MB."""
    for name, schema in model.model_json_schema()["properties"].items():
        if "array" not in str(schema):
            continue
        column = "[" + ",".join([item] * 10_000) + "]"
        with pytest.raises(ValidationError) as caught:
            model.model_validate_json(f'{{"{name}": {column}}}')
        assert caught.value.error_count() <= 1000, name


def test_values_beyond_the_limit_of_a_column(path: str) -> None:
    """The limit applies although the columns have different lengths."""
    content = '{"substreams": [], "max_event_times": [' + "1," * 100_000 + "1]}"
    document = problem(httpx.post(path, content=content, headers=JSON, timeout=60), 422, "invalid_request")
    assert document["field"] == "max_event_times"
    assert "100000" in document["detail"]


def test_integral_floats_in_a_column_are_still_accepted(path: str) -> None:
    """Validation stops at the first float. All floats of the body are then read as integers."""
    job = path.removesuffix(":report")
    httpx.put(job, json=CONFIG, headers={"If-None-Match": "*"}, timeout=60).raise_for_status()
    content = '{"substreams": ["a", "b"], "max_event_times": [1.0, 2e3], "min_event_times": [1, 5.0]}'
    answer = httpx.post(path, content=content, headers=JSON, timeout=60).raise_for_status()
    assert answer.json()["watermark"] == 1 - 10
    content = '{"substreams": ["a", "b"], "max_event_times": [1.0, 2.5]}'
    document = problem(httpx.post(path, content=content, headers=JSON, timeout=60), 422, "invalid_request")
    assert document["field"] == "max_event_times.1"


def test_many_unknown_members_get_one_error(path: str) -> None:
    """A list of all errors would take a second."""
    content = "{" + ",".join(f'"{number:x}":0' for number in range(SIZE // 10)) + "}"
    answer = httpx.post(path, content=content, headers=JSON, timeout=60)
    document = problem(answer, 422, "invalid_request")
    assert "errors; GET /v1/openapi.json" in document["detail"]
    assert "errors" not in document


def test_a_long_unknown_member_is_not_repeated_in_full(path: str) -> None:
    """The answer to a body of 4 MB would have 12 MB."""
    answer = httpx.post(path, content='{"' + "x" * (SIZE - 100) + '": 0}', headers=JSON, timeout=60)
    document = problem(answer, 422, "invalid_request")
    assert document["errors"][-1]["field"] == "x" * 200 + "..."
    assert len(answer.content) < 2000


def test_many_unknown_substreams_are_not_all_listed(path: str) -> None:
    """The answer would be twice as long as the request."""
    job = path.replace(":report", "-unknown")
    httpx.put(job, json=CONFIG, headers={"If-None-Match": "*"}, timeout=60).raise_for_status()
    for number, shown in ((20, "'n19']"), (5000, "'n19'] and 4980 more")):
        body = {"substreams": [f"n{each}" for each in range(number)]}
        answer = httpx.post(f"{job}/substreams:done", json=body, timeout=60)
        document = problem(answer, 404, "substream_not_found")
        assert document["substreams"] == [f"n{each}" for each in range(20)]
        assert shown in document["detail"]
        assert len(answer.content) < 2000


def test_a_call_that_fails_as_its_client_leaves_logs_no_exception() -> None:
    """asyncio would log the exception of the call, because the refused client does not read it."""
    unread = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unread.append(context))

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def fail() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                raise ValueError("the job was deleted")

        with pytest.raises(ClientDisconnect):
            await while_connected(Request({"type": "http"}, receive), fail())
        gc.collect()

    asyncio.run(run())
    assert unread == []
