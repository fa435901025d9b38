"""Bodies of requests and answers.

pydantic validates the raw bytes of a body. Parsing them into a dictionary first would take twice as long. A body is
therefore a dependency of its endpoint (:class:`BodyOf`), from which the OpenAPI document takes its model.

Another process validates large bodies, and converts them to the pieces of a command. The body of 100,000 substreams
takes more than 100 ms, during which the event loop would serve no other client. The process starts at the first large
body, runs at a lower priority, and ends when its standard input is closed.
"""

import asyncio
import json
import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

from fastapi import Depends, Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.status import HTTP_200_OK
from starlette.types import Receive

from tidegate.http.problems import Problem, incomplete_body
from tidegate.views.config import KINDS
from tidegate.views.types import FieldError, SubstreamsRequest

Body = TypeVar("Body", bound=BaseModel)

MAX_DIGITS = 20
"""Maximum number of digits of an integer. Longer integers are out of range in every field."""
MAX_ERRORS = 20
"""Maximum number of errors that a problem lists."""
MAX_COUNTED_ERRORS = 1000
"""Number of errors above which a problem lists none. Unknown members can cause 400,000, which take a second to list."""
MAX_FIELD = 200
"""Maximum number of characters of a field in a problem. The client chooses the names of unknown members."""


async def raw_body(receive: Receive) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: If the client disconnects before the end of the body.
    """
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise incomplete_body()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


class BodyOf(Generic[Body]):
    """A FastAPI dependency that reads the body of a request.

    It answers an invalid body with a problem. Its ``field`` is the first invalid field. Its ``errors`` list the first
    ``MAX_ERRORS`` errors.

    Args:
        model: The model of the body.
    """

    def __init__(self, model: type[Body]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> Body:
        """Return the validated body. An empty body counts as ``{}``."""
        bodies: BodyReader = request.app.state.context.bodies
        return await bodies.read(request.receive, self.model, request.path_params.get("query", ""))


def body_of(model: type[BaseModel]) -> Any:
    """Return the annotation of a parameter that takes the body of a request."""
    return Depends(BodyOf(model))


def validated(raw: bytes, model: type[Body]) -> Body:
    """Return a validated body.

    Raises:
        ValidationError: If the body is invalid.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # Clients may write integers as 1.0 or 1e3. Only bodies with such numbers are parsed twice.
        if error.error_count() > MAX_COUNTED_ERRORS or not any(
            line["type"] == "int_type" and isinstance(line["input"], float) for line in error.errors()
        ):
            raise
        return model.model_validate_json(json.dumps(json.loads(raw, parse_float=_number)))


def _number(text: str) -> int | float:
    """Return an int if the number in a text is integral, and a float otherwise. A float would round large integers."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # the exponent is out of range
        return float(text)
    return int(number) if number.adjusted() < MAX_DIGITS and number == number.to_integral_value() else float(text)


def invalid_body(error: ValidationError) -> Problem:
    """Return the problem for an invalid body."""
    if error.error_count() > MAX_COUNTED_ERRORS:
        detail = f"the body has {error.error_count()} errors; GET /v1/openapi.json describes valid bodies"
        return Problem("invalid_request", detail, members={"field": ""})
    errors = []
    for line in error.errors(include_url=False, include_input=False)[:MAX_ERRORS]:
        cause = line.get("ctx", {}).get("error")
        place = (*line["loc"], cause.field) if isinstance(cause, FieldError) else line["loc"]
        field = _field(place, line["type"])
        errors.append({"field": field, "detail": _detail(line)})
    first = errors[0]
    detail = f"{first['field']}: {first['detail']}" if first["field"] else first["detail"]
    return Problem("invalid_request", detail, members={"field": first["field"], "errors": errors})


def _detail(line: ErrorDetails) -> str:
    """Return the message of an error in terms of the request. pydantic's own messages mention models and tags."""
    match line["type"]:
        case "missing" | "union_tag_not_found":
            return "is missing"
        case "extra_forbidden":
            return "is not a known member"
        case "union_tag_invalid":
            return f"must be one of {line['ctx']['expected_tags']}"
        case "json_invalid":
            return f"the body is not valid JSON ({line['ctx']['error']})"
        case _:
            return line["msg"].removeprefix("Value error, ")


def _field(place: tuple[int | str, ...], error: str) -> str:
    """Return the path of a field in the body, without the types of policies and throttles that pydantic adds."""
    names = place[-1:] if error == "extra_forbidden" else ()  # an unknown member may have the name of a type
    inner = place[: len(place) - len(names)]
    parts = [str(part) for part in inner if part not in KINDS]
    parts += map(str, names)
    if error.startswith("union_tag"):
        parts.append("type")
    field = ".".join(parts)
    return field if len(field) <= MAX_FIELD else f"{field[:MAX_FIELD]}..."


class JsonAnswer(Response):
    """A successful answer with JSON that is already encoded, without Starlette's processing of headers."""

    media_type = "application/json"

    def __init__(self, body: bytes) -> None:
        self.status_code, self.body, self.background = HTTP_200_OK, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON]


_JSON = (b"content-type", JsonAnswer.media_type.encode())


def json_answer(answer: BaseModel, status: int = HTTP_200_OK, **headers: str) -> Response:
    """Return a JSON answer with all fields that it has."""
    return Response(answer.model_dump_json(), status, headers, "application/json")


def compact_answer(answer: BaseModel) -> Response:
    """Return a JSON answer with only those of its fields that are set."""
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


MIN_BYTES = 32 * 1024
"""Size of a body above which it is large. Smaller bodies take less time than the way to the other process."""
MAX_COLONS = 500
"""Number of colons above which a body is large. Each member has a colon, and each unknown member costs an error."""
NICE = 5
END_S = 5
"""Maximum time in seconds that the process has to end, when its standard input is closed."""
_SIZES = struct.Struct("!QQ")
_SIZE = struct.Struct("!Q")


class BodyReader:
    """Reads and validates request bodies, and large ones in another process, one at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._exchanges = set[asyncio.Task[bytes]]()

    async def read(self, receive: Receive, model: type[Body], query: str = "") -> Body:
        """Return the validated body of a request. An empty body counts as ``{}``.

        A large body that has columns of substreams is returned without them, but with the pieces of its command.

        Args:
            receive: Receives the body.
            model: The model of the body.
            query: The query in the path of the call.

        Raises:
            Problem: If the body is invalid or incomplete.
        """
        raw = await raw_body(receive) or b"{}"
        if len(raw) > MIN_BYTES or raw.count(b":") > MAX_COLONS:
            return await self._read_large(raw, model, query)
        try:
            return validated(raw, model)
        except ValidationError as error:
            raise invalid_body(error) from None

    async def _read_large(self, raw: bytes, model: type[Body], query: str) -> Body:
        # If the caller is cancelled, the exchange continues. Otherwise the process would have to be replaced.
        exchange = asyncio.create_task(self._exchange(pickle.dumps((model, query)), raw), name="large body")
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        answer = pickle.loads(await asyncio.shield(exchange))  # noqa: S301  # of our own process
        if isinstance(answer, model):
            return answer
        code, detail, members = answer
        raise Problem(code, detail, members=members)

    async def aclose(self) -> None:
        """End the process."""
        async with self._lock:
            process, self._process = self._process, None
            if process is not None:
                await _end(process)

    async def _exchange(self, request: bytes, raw: bytes) -> bytes:
        """Send a body to the process, and return the answer. Start another process if it has died."""
        async with self._lock:
            try:
                return await self._exchange_once(request, raw)
            except (ConnectionError, asyncio.IncompleteReadError):
                return await self._exchange_once(request, raw)

    async def _exchange_once(self, request: bytes, raw: bytes) -> bytes:
        process = self._process or await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.writelines((_SIZES.pack(len(request), len(raw)), request, raw))
            await process.stdin.drain()
            [size] = _SIZE.unpack(await process.stdout.readexactly(_SIZE.size))
            return await process.stdout.readexactly(size)
        except BaseException:  # the process has died, or the next answer would be that of this body
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def main() -> None:
    """Answer bodies on standard input until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the coordinator
    os.nice(NICE)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while header := requests.read(_SIZES.size):
        request, raw = (requests.read(size) for size in _SIZES.unpack(header))
        answer = pickle.dumps(_answer(raw, *pickle.loads(request)))  # noqa: S301  # of the coordinator
        answers.write(_SIZE.pack(len(answer)))
        answers.write(answer)
        answers.flush()


def _answer(raw: bytes, model: type[BaseModel], query: str) -> object:
    """Return a validated body, or the code, the detail and the members of a problem."""
    try:
        body = validated(raw, model)
    except ValidationError as error:
        problem = invalid_body(error)
        return problem.code, problem.detail, problem.members
    return body.converted(query) if isinstance(body, SubstreamsRequest) else body


if __name__ == "__main__":
    main()
