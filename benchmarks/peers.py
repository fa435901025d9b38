"""What the coordinator's ``:report`` is compared with: FastAPI without Redis, and an ASGI application that echoes.

Both are served by uvicorn with the event loop and the HTTP parser of the coordinator.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

STARTED_IN_S = 30.0


class Report(BaseModel):
    """A report, as its author would declare it without the coordinator's checks."""

    substreams: list[str]
    max_event_times: list[int | None]
    watermark_token: str | None = None


class Holder(BaseModel):
    """The holder of the watermark."""

    reason: str
    query: str
    substream: str
    since_ms: int


class Answer(BaseModel):
    """An answer of the size of the coordinator's."""

    job: str
    applied: bool
    watermark: int | None
    coalesced_watermark: int | None
    state_epoch: str
    now_ms: int
    complete: bool
    held_by: Holder
    watermark_token: str


fastapi_app = FastAPI()


@fastapi_app.post("/v1/jobs/{job}:report")
async def report(job: str, body: Report) -> Answer:
    """Answer a report with its lowest event time."""
    lowest = min(time for time in body.max_event_times if time is not None)
    holder = Holder(reason="slow", query="", substream=body.substreams[0], since_ms=lowest)
    return Answer(
        job=job,
        applied=True,
        watermark=lowest,
        coalesced_watermark=lowest,
        state_epoch="0123456789abcdef",
        now_ms=time.time_ns() // 1_000_000,
        complete=False,
        held_by=holder,
        watermark_token=f"1.{lowest}.dGhpcyBpcyBhbiBleGFtcGxlIG9mIGEgdG9rZW4",
    )


async def echo_app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    """Answer a request with its body."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Serve an application of this module, and yield the process."""
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.peers:{app}", "--port", str(port)]
    command += [
        "--loop",
        "uvloop",
        "--http",
        "httptools",
        "--lifespan",
        "off",
        "--no-access-log",
        "--log-level",
        "error",
    ]
    process = subprocess.Popen(command)
    try:
        _await(f"http://127.0.0.1:{port}/", process)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + STARTED_IN_S
    while True:
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.ConnectError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
