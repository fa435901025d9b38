"""The reader of request bodies. Another process validates large ones, and converts them to the pieces of a command.

The body of 100,000 substreams takes more than 100 ms, during which the event loop would serve no other client. The
process starts at the first large body, runs at a lower priority, and ends when its standard input is closed.
"""

import asyncio
import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from tidegate.views.types import SubstreamsRequest
from tidegate.web.bodies import invalid_body, raw_body, validated
from tidegate.web.problems import Problem

Body = TypeVar("Body", bound=BaseModel)

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
