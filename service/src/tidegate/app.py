"""The application of a replica: its components, calls and background tasks."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache

from fastapi import Depends, FastAPI, Response
from fastapi.routing import APIRoute
from redis.exceptions import RedisError
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate import __version__
from tidegate.auth.keyring import Keyring, Revocation
from tidegate.auth.sessions import Sessions
from tidegate.auth.usage import KeyUsage
from tidegate.auth.watermark_tokens import Tokens
from tidegate.http.bodies import BodyReader, JsonAnswer
from tidegate.http.guard import BodyMemory, Guard
from tidegate.http.observed import Observed
from tidegate.http.openapi import openapi_document
from tidegate.http.problems import register
from tidegate.http.request import Context, authorise, check_roles, refuse_unknown
from tidegate.http.routes import actions, consumers, history, jobs, keys, monitoring, reports, state
from tidegate.http.routes.hot import DOCUMENT, DirectCalls
from tidegate.http.turns import InTurn, Turns
from tidegate.page import actions as page_actions
from tidegate.page import layout, pages
from tidegate.page.layout import Files
from tidegate.runtime.background import Sweeper, end, record_key_usage, watch_risks
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.traces import Traces, configured_traces
from tidegate.runtime.wakeups import WakeUps
from tidegate.settings import LOOPBACK, Settings
from tidegate.store import shared
from tidegate.store.clock import ClockGuard
from tidegate.store.connection import connect_all
from tidegate.store.functions import AroundCommand
from tidegate.store.jobs import Capacity, JobStore
from tidegate.store.pipelining import Replication
from tidegate.store.servers import Servers, raise_first
from tidegate.views.reader import Overview, Reader

log = logging.getLogger(__name__)

MIN_OUTAGE_MS = 2000
MISSED_SWEEPS = 10
"""The jobs are unattended if no coordinator runs for ``MIN_OUTAGE_MS``, or ``MISSED_SWEEPS`` intervals, if longer."""

RESOURCES = (jobs, reports, state, history, consumers, actions, keys, monitoring)
PAGES = (pages, page_actions, layout)


@dataclass(frozen=True)
class _Replica:
    """The components of a replica that exist before the application starts."""

    settings: Settings
    redis_url: str
    token_key: bytes | None
    keyring: Keyring | None
    clock: Callable[[], int] | None
    guard: ClockGuard
    usage: KeyUsage
    metrics: Metrics = field(default_factory=Metrics)
    traces: Traces = field(default_factory=configured_traces)


class _Application(FastAPI):
    """The FastAPI application of a replica, behind the middleware of the service.

    The calls of each batch do not reach FastAPI, so they do not pass its middleware, either.
    """

    front: ASGIApp
    """The outermost middleware."""
    _document: Response | None = None

    def document(self) -> Response:
        """Return the answer with the OpenAPI document, which is made once."""
        if self._document is None:
            text = json.dumps(self.openapi(), ensure_ascii=False, separators=(",", ":"))
            self._document = JsonAnswer(text.encode())
        return self._document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await self.front(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that has passed the middleware."""
        await super().__call__(scope, receive, send)


def create_app(
    settings: Settings,
    redis_url: str,
    token_key: bytes | None = None,
    keyring: Keyring | None = None,
    clock: Callable[[], int] | None = None,
) -> FastAPI:
    """Return the application of a replica.

    Args:
        settings: Settings of the service.
        redis_url: Address of the store.
        token_key: Key of the watermark tokens, or None to use the key in Redis.
        keyring: API keys, or None if calls need no key.
        clock: Function for tests that returns the processing time in Unix milliseconds, or None to use the clock of
            Redis.
    """
    guard = ClockGuard(settings.max_clock_step_ms)
    usage = KeyUsage(settings.max_calls_per_s, settings.max_calls_burst, guard.now_s)
    if keyring is not None:
        keyring.now_s = guard.now_s
    replica = _Replica(settings, redis_url, token_key, keyring, clock, guard, usage)
    app = _Application(
        title="Tidegate",
        version=__version__,
        lifespan=lambda app: _lifespan(app, replica),
        redirect_slashes=False,
        openapi_url=DOCUMENT,
        docs_url=None,
        dependencies=[Depends(authorise), Depends(refuse_unknown)],
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.metrics = replica.metrics
    calls = _add_calls(app)
    app.front = _middleware(app, replica, calls)
    app.mount("/static", Files(packages=[("tidegate.page", "static")]), name="static")
    # The document is cached, because building it takes a tenth of a second.
    app.openapi = cache(lambda: openapi_document(app, calls))  # type: ignore[method-assign]
    return app


def _add_calls(app: FastAPI) -> list[APIRoute]:
    calls: list[APIRoute] = []
    for resource in (*RESOURCES, *PAGES):
        calls += [route for route in resource.router.routes if isinstance(route, APIRoute)]
        app.include_router(resource.router)
    check_roles(calls)
    register(app, calls)
    return calls


def _middleware(app: _Application, replica: _Replica, calls: list[APIRoute]) -> ASGIApp:
    """Return the middleware in front of an application."""
    settings, keyring = replica.settings, replica.keyring
    turns = Turns(settings.max_active_calls, settings.max_queued_calls)
    replica.metrics.observe_queued(lambda: turns.queued)
    memory = BodyMemory(max(settings.max_body_memory_bytes, 2 * settings.max_body_bytes))
    replica.metrics.observe_bodies(lambda: memory.held, memory.max_bytes)
    direct = InTurn(DirectCalls(app.serve, calls, lambda: app.state.context, app.document), turns)
    loopback_only = keyring is None and settings.host in LOOPBACK
    guard = Guard(direct, settings.max_body_bytes, memory, keyring, replica.usage, turns, loopback_only)
    return Observed(guard, replica.metrics, replica.traces)


def store_servers(settings: Settings, redis_url: str) -> Servers:
    """Return the servers of the store at an address."""
    replication = Replication(settings.min_replicas, settings.replication_timeout_ms)
    return connect_all(redis_url, settings.buckets, replication if settings.min_replicas else None)


@asynccontextmanager
async def _lifespan(app: FastAPI, replica: _Replica) -> AsyncIterator[None]:
    settings, keyring, metrics, usage = replica.settings, replica.keyring, replica.metrics, replica.usage
    servers = store_servers(settings, replica.redis_url)
    unattended_after_ms = max(MIN_OUTAGE_MS, MISSED_SWEEPS * settings.sweep_interval_ms)
    store = JobStore(
        servers,
        unattended_after_ms,
        replica.guard,
        Capacity(settings.max_jobs, settings.max_substreams),
        _around_commands(metrics, replica.traces),
        replica.clock,
        settings.sweep_interval_ms,
    )
    await _read_clock(store)
    wakeups = WakeUps(store, settings.max_waiting, settings.max_wait_s)
    metrics.observe_waiting(lambda: wakeups.waiting, settings.max_waiting)
    token_key = replica.token_key or await shared.token_secret(servers)
    tokens, revocation = Tokens(token_key), Revocation(keyring)
    app.state.context = Context(
        store=store,
        bodies=(bodies := BodyReader()),
        reader=Reader(store, tokens.issue, round(settings.stale_after_s * 1000)),
        tokens=tokens,
        wakeups=wakeups,
        keyring=keyring,
        sessions=Sessions(token_key, keyring, replica.guard.now_s),
        overview=Overview(store),
        metrics=metrics,
        usage=usage,
        revocation=revocation,
        max_scraped_substreams=settings.max_scraped_substreams,
    )
    tasks = [
        asyncio.create_task(wakeups.run(), name="wakeups"),
        asyncio.create_task(revocation.run(), name="revocation"),
        asyncio.create_task(record_key_usage(store, usage, keyring), name="key-recorder"),
        asyncio.create_task(Sweeper(store, settings.sweep_interval_ms, metrics).run(), name="sweeper"),
        asyncio.create_task(watch_risks(servers, replica.redis_url, metrics), name="risks"),
    ]
    yield
    await end(tasks)
    await bodies.aclose()
    await servers.aclose()
    replica.traces.close()


async def _read_clock(store: JobStore) -> None:
    """Read the clock of Redis before the first call, because the expiry of keys follows it."""
    try:
        raise_first(await store.read_clock())
    except RedisError as error:
        reason = error or type(error).__name__
        log.warning("Cannot read the clock of Redis; keys expire by the local clock until it answers: %s", reason)


def _around_commands(metrics: Metrics, traces: Traces) -> AroundCommand:
    @contextmanager
    def traced(command: str) -> Iterator[None]:
        with traces.command(command), metrics.command(command):
            yield

    return traced if traces.enabled else metrics.command
