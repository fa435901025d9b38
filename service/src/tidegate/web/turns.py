"""Turns of calls: tenants take turns when the calls of one tenant would delay those of the others.

A call waits until the replica has worked on all calls that arrived before it. Without turns, a tenant with many
connections delays all other tenants.

A tenant is the name of a key. Without keys, a tenant is a job, because all clients of a service on loopback have the
same address. Further calls, such as the page and its login, belong to the tenant of their client address.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.auth.usage import network
from tidegate.web.problems import Problem

NEVER_QUEUED = ("/livez", "/readyz", "/metrics")
"""Paths of the calls that monitor a replica. They must answer while the replica is busy."""
LIMITED_S = 10.0
"""Time in seconds for which the limit applies after a call for which it is needed."""
_JOB = re.compile(r"/v1/jobs/([^/:]+)")

Tenant = tuple[str, str]
"""The kind of a tenant and its name: a key, a job or a client address."""


class Turns:
    """The calls in progress, and the queue of each tenant.

    A tenant without a call in progress starts a call at once, so other tenants cannot block it. If ``max_active`` calls
    of others are in progress then, the limit ``max_active`` applies for ``LIMITED_S`` seconds: further calls of a
    tenant with a call in progress join the queue of the tenant. When a call ends, the next tenant with a queue starts
    its oldest call.

    The limit does not apply to a tenant that has the replica for itself, because many calls in progress share the
    round trips to Redis, which saves up to a third of the processor time.

    Args:
        max_active: Maximum number of calls in progress while the limit applies, besides the first call of each tenant.
        max_queued: Maximum number of calls in the queue of one tenant.

    Attributes:
        queued: Number of calls in all queues. Another thread reads it for the metrics.
    """

    def __init__(self, max_active: int, max_queued: int) -> None:
        self.max_queued, self._max_active = max_queued, max_active
        self._active = self.queued = 0
        self._of: dict[Tenant, _Calls] = {}
        self._queues: dict[Tenant, _Calls] = {}  # tenants with queued calls; the first one is next
        self._limited_until: float | None = None

    def has_room(self, tenant: Tenant) -> bool:
        """Return whether another call of a tenant can start or join its queue."""
        return tenant not in self._queues or len(self._queues[tenant].queue) < self.max_queued

    def begin(self, tenant: Tenant) -> "Turn | None":
        """Start a call and return its turn, or return None if the call must :meth:`wait` for its turn."""
        calls = self._of.get(tenant)
        if calls is None:
            calls = self._of[tenant] = _Calls(tenant)
            if self._active >= self._max_active:
                self._limited_until = time.monotonic() + LIMITED_S
        elif self._is_full():
            return None
        self._active += 1
        calls.active += 1
        return Turn(self, calls)

    async def wait(self, tenant: Tenant) -> "Turn":
        """Return the turn of a call when it starts."""
        calls, call = self._of[tenant], asyncio.get_running_loop().create_future()
        calls.queue.append(call)
        self.queued += 1
        self._queues[tenant] = calls
        try:
            await call
        except asyncio.CancelledError:
            if call.cancelled():
                calls.queue.remove(call)
                self.queued -= 1
                if not calls.queue:
                    del self._queues[tenant]
            else:  # cancelled after it was started
                self.end(calls)
            raise
        return Turn(self, calls)

    def end(self, calls: "_Calls") -> None:
        """End a call, and start the next calls."""
        self._active -= 1
        calls.active -= 1
        if not calls.active:
            if calls.queue:
                self._start_next(calls)
            else:
                del self._of[calls.tenant]
        while self._queues and not self._is_full():
            self._start_next(next(iter(self._queues.values())))

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[None]:
        """Run a block in a turn of a tenant, or at once if the queue of the tenant is full."""
        if not self.has_room(tenant):
            yield
            return
        turn = self.begin(tenant) or await self.wait(tenant)
        try:
            yield
        finally:
            turn.end()

    def _is_full(self) -> bool:
        if self._limited_until is None or self._active < self._max_active:
            return False
        if time.monotonic() >= self._limited_until:
            self._limited_until = None
        return self._limited_until is not None

    def _start_next(self, calls: "_Calls") -> None:
        """Start the oldest queued call of a tenant, and move the tenant to the end of the order."""
        del self._queues[calls.tenant]
        call = calls.queue.popleft()
        self.queued -= 1
        if calls.queue:
            self._queues[calls.tenant] = calls
        self._active += 1
        calls.active += 1
        call.set_result(None)


class _Calls:
    """The calls of a tenant: the number of calls in progress, and the queue."""

    __slots__ = ("active", "queue", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.active = tenant, 0
        self.queue: deque[asyncio.Future[None]] = deque()


class Turn:
    """The turn of one call."""

    __slots__ = ("_calls", "_turns")

    def __init__(self, turns: Turns, calls: _Calls) -> None:
        self._turns = turns
        self._calls: _Calls | None = calls  # None after the end

    def end(self) -> None:
        """Let the next call start. Repeated calls of this method have no effect."""
        calls, self._calls = self._calls, None
        if calls is not None:
            self._turns.end(calls)


class InTurn:
    """A middleware that serves calls in turn. The body of a call must have arrived.

    A turn ends with the call, or earlier by :func:`end_turn`: when the answer begins, so that event streams and slow
    readers do not keep the turn, and before a call waits for a watermark.

    Args:
        app: The application.
        turns: The calls in progress and the queues.
    """

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app, self._turns = app, turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request in its turn, or refuse it if the queue of its tenant is full."""
        if scope["type"] != "http" or scope["path"] in NEVER_QUEUED:
            await self._app(scope, receive, send)
            return
        tenant = tenant_of(scope)
        if not self._turns.has_room(tenant):
            problem = self._queue_full(tenant)
            scope["problem"] = problem.code
            await problem.response()(scope, receive, send)
            return
        turn = scope["turn"] = self._turns.begin(tenant) or await self._turns.wait(tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            turn.end()

    def _queue_full(self, tenant: Tenant) -> Problem:
        kind, name = tenant
        detail = (
            f"{self._turns.max_queued} calls of the {kind} {name} already wait for their turn; send fewer calls at "
            "once, or raise TIDEGATE_MAX_QUEUED_CALLS."
        )
        return Problem("too_many_queued", detail, members={"limit": self._turns.max_queued})


def end_turn(scope: Scope) -> None:
    """End the turn of a call that still has one."""
    turn: Turn | None = scope.get("turn")
    if turn is not None:
        turn.end()


def tenant_of(scope: Scope) -> Tenant:
    """Return the tenant of a call."""
    caller = scope.get("caller")
    if caller is not None and caller.key is not None:
        return "key", caller.key.name
    # Calls without a caller are those of the page, and calls without a valid key. Their client chooses the path, so a
    # job in the path does not identify it.
    job = _JOB.match(scope["path"]) if caller is not None else None
    if job is not None:
        return "job", job[1]
    return "address", network(scope["client"][0]) if scope.get("client") else ""
