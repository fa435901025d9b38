"""Wires a replica: the store below, the routes above, the tasks beside them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from tidegate import __version__
from tidegate.api import documents, problems
from tidegate.api.access import authorised, check_roles
from tidegate.api.context import Context
from tidegate.api.guard import Guard
from tidegate.api.observed import Observed
from tidegate.api.parameters import known_parameters
from tidegate.api.routes import actions, explain, health, history, jobs, keys, reports, state, watch
from tidegate.api.routes import metrics as scrape
from tidegate.api.tokens import Tokens
from tidegate.auth.keyring import Keyring
from tidegate.auth.revocation import Revocation
from tidegate.auth.usage import KeyUsage
from tidegate.page import routes as page
from tidegate.page.sessions import Sessions
from tidegate.runtime.key_recorder import KeyRecorder
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.overview import Overview
from tidegate.runtime.sweeper import Sweeper
from tidegate.runtime.tasks import end
from tidegate.runtime.traces import Traces, configured
from tidegate.runtime.wakeups import WakeUps
from tidegate.settings import LOOPBACK, Settings
from tidegate.store import shared
from tidegate.store.clock import ClockGuard
from tidegate.store.connection import connect
from tidegate.store.jobs import JobStore, Limits
from tidegate.store.keys import TOUCH_MS
from tidegate.store.scripts import AroundCommand

ABSENT_TOUCHES = 3
"""So many times the interval at which a waiting job is looked at: who was not by then was looked after by nobody."""


def create_app(
    settings: Settings,
    redis_url: str,
    token_key: bytes | None = None,
    keyring: Keyring | None = None,
    clock: Callable[[], int] | None = None,
) -> FastAPI:
    """A replica on the Redis at ``redis_url``.

    ``token_key`` None: the one that is kept in that Redis. ``keyring`` None: anybody may call. ``clock``: returns the
    processing time in Unix milliseconds, for tests; None: Redis's own.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = connect(redis_url)
        limits = Limits(settings.max_jobs, settings.max_substreams)
        guard = ClockGuard(settings.max_clock_step_ms)
        unattended_after_ms = max(ABSENT_TOUCHES * TOUCH_MS, 10 * settings.sweep_interval_ms)
        store = JobStore(redis, unattended_after_ms, guard, limits, _around_commands(metrics, traces), clock)
        wakeups = WakeUps(redis, store, settings.max_waiting, settings.max_wait_s)
        metrics.count_waiting(lambda: wakeups.waiting, settings.max_waiting)
        key = token_key or await shared.token_secret(redis)
        stale_after_ms = round(settings.stale_after_s * 1000)
        app.state.context = Context(
            store,
            Tokens(key),
            wakeups,
            keyring,
            Overview(store),
            metrics,
            usage,
            revocation,
            stale_after_ms,
            settings.max_scraped_substreams,
        )
        app.state.sessions = Sessions(key, keyring)
        tasks = [
            asyncio.create_task(wakeups.run(), name="wakeups"),
            asyncio.create_task(revocation.run(), name="revocation"),
            asyncio.create_task(KeyRecorder(store, usage).run(), name="key-recorder"),
            asyncio.create_task(Sweeper(store, settings.sweep_interval_ms, metrics).run(), name="sweeper"),
        ]
        yield
        await end(tasks)
        await redis.aclose()
        traces.close()

    metrics, traces, usage, revocation = Metrics(), configured(), KeyUsage(), Revocation(keyring)
    app = FastAPI(
        title="Tidegate",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        dependencies=[Depends(authorised), Depends(known_parameters)],
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.metrics = metrics
    calls: list[APIRoute] = []
    for resource in (jobs, reports, state, explain, watch, history, actions, keys, health, scrape, page):
        calls += [route for route in resource.router.routes if isinstance(route, APIRoute)]
        app.include_router(resource.router)
    check_roles(calls)
    problems.register(app, calls)

    app.add_middleware(
        Guard,
        max_body_bytes=settings.max_body_bytes,
        keyring=keyring,
        usage=usage,
        loopback_only=keyring is None and settings.host in LOOPBACK,
    )
    app.add_middleware(Observed, metrics=metrics, traces=traces)
    app.mount("/static", page.Files(packages=[("tidegate.page", "static")]), name="static")
    app.openapi = cache(lambda: documents.openapi(app))  # type: ignore[method-assign]  # a tenth of a second each
    return app


def _around_commands(metrics: Metrics, traces: Traces) -> AroundCommand:
    @contextmanager
    def both(command: str) -> Iterator[None]:
        with traces.command(command), metrics.command(command):
            yield

    return both if traces.on else metrics.command
