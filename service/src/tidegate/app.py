"""Wires a replica: the store below, the routes above, the tasks beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from tidegate import __version__
from tidegate.api import documents, problems
from tidegate.api.access import authorised, check_roles
from tidegate.api.context import Context
from tidegate.api.guard import Guard
from tidegate.api.parameters import known_parameters
from tidegate.api.problems import Problem
from tidegate.api.routes import actions, explain, health, history, jobs, reports, state, watch
from tidegate.api.tokens import Tokens
from tidegate.runtime.sweeper import Sweeper
from tidegate.runtime.tasks import end
from tidegate.runtime.wakeups import WakeUps
from tidegate.settings import LOOPBACK, Settings
from tidegate.store.clock import ClockGuard
from tidegate.store.connection import connect
from tidegate.store.keyring import Keyring
from tidegate.store.keys import TOUCH_MS
from tidegate.store.redis import JobStore, Limits

ABSENT_TOUCHES = 3
"""So many times the interval at which a waiting job is looked at: who was not by then was looked after by nobody."""


def create_app(
    settings: Settings, redis_url: str, token_key: bytes | None = None, keyring: Keyring | None = None
) -> FastAPI:
    """A replica on the Redis at ``redis_url``.

    ``token_key`` None: the one that is kept in that Redis. ``keyring`` None: anybody may call.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = connect(redis_url)
        limits = Limits(settings.max_jobs, settings.max_substreams)
        guard = ClockGuard(settings.max_clock_step_ms)
        store = JobStore(redis, max(ABSENT_TOUCHES * TOUCH_MS, 10 * settings.sweep_interval_ms), guard, limits)
        wakeups = WakeUps(redis, store, settings.max_waiting, settings.max_wait_s)
        app.state.context = Context(store, Tokens(token_key or await store.secret()), wakeups, keyring)
        tasks = [
            asyncio.create_task(wakeups.run(), name="wakeups"),
            asyncio.create_task(Sweeper(store, settings.sweep_interval_ms).run(), name="sweeper"),
        ]
        yield
        await end(tasks)
        await redis.aclose()

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
    calls: list[APIRoute] = []
    for resource in (jobs, reports, state, explain, watch, history, actions, health):
        calls += [route for route in resource.router.routes if isinstance(route, APIRoute)]
        app.include_router(resource.router)
    check_roles(calls)
    problems.register(app, calls)

    @app.exception_handler(RequestValidationError)
    async def bad_parameter(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        return Problem(422, "invalid_request", f"{field}: {first['msg']}", members={"field": field}).response()

    app.add_middleware(
        Guard,
        max_body_bytes=settings.max_body_bytes,
        keyring=keyring,
        loopback_only=keyring is None and settings.host in LOOPBACK,
    )
    app.openapi = lambda: documents.openapi(app)  # type: ignore[method-assign]
    return app
