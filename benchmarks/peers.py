"""The servers that the coordinator's ``:report`` is compared with.

uvicorn serves them with the event loop and the HTTP parser of the coordinator.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import asyncpg
import httpx
from fastapi import FastAPI
from msgspec import msgpack
from pydantic import BaseModel
from redis.asyncio import Redis

from tidegate.store.functions import map_of, reply_of
from tidegate.store.keyspace import ONE_SERVER
from tidegate.store.library import library

STARTED_IN_S = 30.0


class Report(BaseModel):
    """A report as a plain model, without the coordinator's checks."""

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
    """An answer as large as the coordinator's."""

    job: str
    applied: bool
    watermark: int | None
    coalesced_watermark: int | None
    state_epoch: str
    now_ms: int
    complete: bool
    held_by: Holder
    watermark_token: str


def answer(job: str, substream: str, lowest: int) -> Answer:
    """Return the answer of a server whose watermark is the event time of a substream."""
    return Answer(
        job=job,
        applied=True,
        watermark=lowest,
        coalesced_watermark=lowest,
        state_epoch="0123456789abcdef",
        now_ms=time.time_ns() // 1_000_000,
        complete=False,
        held_by=Holder(reason="slow", query="", substream=substream, since_ms=lowest),
        watermark_token=f"1.{lowest}.dGhpcyBpcyBhbiBleGFtcGxlIG9mIGEgdG9rZW4",
    )


fastapi_app = FastAPI()
awaited_app = FastAPI()


@fastapi_app.post("/v1/jobs/{job}:report")
async def report(job: str, body: Report) -> Answer:
    """Answer a report with its lowest event time."""
    lowest = min(time for time in body.max_event_times if time is not None)
    return answer(job, body.substreams[0], lowest)


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


@awaited_app.post("/v1/jobs/{job}:report")
async def awaited_report(job: str, body: Report) -> Answer:
    """Apply a report by one awaited call of the coordinator's function."""
    arguments = {
        "members": [f"/{name}" for name in body.substreams],
        "max_event_times": body.max_event_times,
        "watermarks": [],
        "min_event_times": [],
        "tokens": [],
    }
    keys = ONE_SERVER.of_call(job)
    call = ("FCALL", library().function("report"), len(keys), *keys, msgpack.encode(arguments))
    reply = reply_of(await redis().execute_command(*call))  # type: ignore[no-untyped-call]
    holder = map_of(reply["held_by"])
    return Answer(
        job=job,
        applied=True,
        held_by=Holder(**{name: holder[name] for name in Holder.model_fields}),
        complete=False,
        watermark_token=f"1.{reply['watermark']}.dGhpcyBpcyBhbiBleGFtcGxlIG9mIGEgdG9rZW4",
        **{name: reply[name] for name in ("watermark", "coalesced_watermark", "state_epoch", "now_ms")},
    )


@cache
def redis() -> Redis:
    """Return a client of the coordinator's Redis."""
    return Redis(unix_socket_path=os.environ["REDIS_SOCKET"], decode_responses=True)


postgres_app = FastAPI()
TABLE = """CREATE TABLE IF NOT EXISTS substreams (
    job text, name text, max_event_time bigint, last_event timestamptz, PRIMARY KEY (job, name)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS by_event_time ON substreams (job, max_event_time)"""
UPSERT = """INSERT INTO substreams AS old SELECT $1, name, event_time, now() FROM unnest($2::text[], $3::bigint[])
    AS new (name, event_time) ORDER BY name
ON CONFLICT (job, name) DO UPDATE SET last_event = excluded.last_event,
    max_event_time = greatest(old.max_event_time, excluded.max_event_time)"""
LOWEST = "SELECT name, max_event_time FROM substreams WHERE job = $1 ORDER BY max_event_time LIMIT 1"
_pools: list["asyncpg.Pool[asyncpg.Record]"] = []
_creating = asyncio.Lock()


async def pool() -> "asyncpg.Pool[asyncpg.Record]":
    """Create the table unless it exists, and return the connections to PostgreSQL."""
    async with _creating:
        if not _pools:
            found = await asyncpg.create_pool(
                host=os.environ["POSTGRES"], user="bench", database="postgres", min_size=16, max_size=16
            )
            await found.execute(TABLE)
            _pools.append(found)
        return _pools[0]


@postgres_app.post("/v1/jobs/{job}:report")
async def postgres_report(job: str, body: Report) -> Answer:
    """Apply a report by an upsert for each substream, and answer with the lowest event time of the job."""
    async with (await pool()).acquire() as connection:
        await connection.execute(UPSERT, job, body.substreams, body.max_event_times)
        found = await connection.fetchrow(LOWEST, job)
    assert found is not None
    name, lowest = found
    return answer(job, name, lowest)


@contextmanager
def serving(app: str, **environment: str) -> Iterator[tuple[str, int]]:
    """Serve an application of this module, and yield its URL and the id of its process."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.peers:{app}", f"--port={port}", "--loop=uvloop"]
    command += ["--http=httptools", "--lifespan=off", "--no-access-log", "--log-level=error"]
    process = subprocess.Popen(command, env=os.environ | environment)
    try:
        _await(f"http://127.0.0.1:{port}/", process)
        yield f"http://127.0.0.1:{port}", process.pid
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
