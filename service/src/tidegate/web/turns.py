"""Turns of calls: tenants take turns when the calls of one tenant would delay those of the others.

A call waits until the replica has worked on all calls that arrived before it. Without turns, a tenant with many
connections delays all other tenants.

A tenant is the name of a key. Without keys, a tenant is a job, because all clients of a service on loopback have the
same address. Further calls, such as the page and its login, belong to the tenant of their client address.
"""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """

    def __init__(self, max_active: int, max_queued: int) -> None:
        self.max_queued, self._max_active = max_queued, max_active
        self._active = 0
        self._active_of: Counter[Tenant] = Counter()
        self._queues: dict[Tenant, deque[asyncio.Future[None]]] = {}  # the first tenant is next
        self._limited_until = 0.0

    @property
    def queued(self) -> int:
        """Number of calls in all queues."""
        return sum(map(len, self._queues.values()))

    def has_room(self, tenant: Tenant) -> bool:
        """Return whether another call of a tenant can start or join its queue."""
        queue = self._queues.get(tenant)
        return queue is None or len(queue) < self.max_queued

    def begin(self, tenant: Tenant) -> bool:
        """Start a call and return True, or return False if the call must :meth:`wait` for its turn."""
        if not self._active_of[tenant]:
            if self._active >= self._max_active:
                self._limited_until = time.monotonic() + LIMITED_S
        elif self._is_full():
            return False
        self._start(tenant)
        return True

    async def wait(self, tenant: Tenant) -> None:
        """Return when a call starts."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(call)
        try:
            await call
        except asyncio.CancelledError:
            if call.cancelled():
                self._leave_queue(tenant, call)
            else:  # cancelled after it was started
                self.end(tenant)
            raise

    def end(self, tenant: Tenant) -> None:
        """End a call, and start the next calls."""
        self._active -= 1
        self._active_of[tenant] -= 1
        if not self._active_of[tenant]:
            del self._active_of[tenant]
            if tenant in self._queues:
                self._start_next(tenant)
        while self._queues and not self._is_full():
            self._start_next(next(iter(self._queues)))

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[None]:
        """Run a block in a turn of a tenant, or at once if the queue of the tenant is full."""
        if not self.has_room(tenant):
            yield
            return
        if not self.begin(tenant):
            await self.wait(tenant)
        try:
            yield
        finally:
            self.end(tenant)

    def _is_full(self) -> bool:
        return self._active >= self._max_active and time.monotonic() < self._limited_until

    def _start(self, tenant: Tenant) -> None:
        self._active += 1
        self._active_of[tenant] += 1

    def _start_next(self, tenant: Tenant) -> None:
        """Start the oldest call in the queue of a tenant, and move the tenant to the end of the order."""
        queue = self._queues.pop(tenant)
        call = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        self._start(tenant)
        call.set_result(None)

    def _leave_queue(self, tenant: Tenant, call: "asyncio.Future[None]") -> None:
        queue = self._queues[tenant]
        queue.remove(call)
        if not queue:
            del self._queues[tenant]


class Turn:
    """The turn of one call."""

    __slots__ = ("_ended", "_tenant", "_turns")

    def __init__(self, turns: Turns, tenant: Tenant) -> None:
        self._turns, self._tenant, self._ended = turns, tenant, False

    def end(self) -> None:
        """Let the next call start. Repeated calls of this method have no effect."""
        if not self._ended:
            self._ended = True
            self._turns.end(self._tenant)


class InTurn:
    """A middleware that serves calls in turn. A call takes its turn when its body has arrived.

    A turn ends when the answer begins, so event streams and slow readers do not keep it. A call that waits for a
    watermark ends its turn before it waits (see :func:`turn_of`).

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
        # A client that sends its body slowly must not keep a turn.
        messages = deque([await receive()])
        while messages[-1].get("more_body"):
            messages.append(await receive())
        tenant = tenant_of(scope)
        if not self._turns.has_room(tenant):
            problem = self._queue_full(tenant)
            scope["problem"] = problem.code
            await problem.response()(scope, receive, send)
            return
        if not self._turns.begin(tenant):
            await self._turns.wait(tenant)
        turn = scope["turn"] = Turn(self._turns, tenant)

        async def replay() -> Message:
            return messages.popleft() if messages else await receive()

        async def answer(message: Message) -> None:
            turn.end()
            await send(message)

        try:
            await self._app(scope, replay, answer)
        finally:
            turn.end()

    def _queue_full(self, tenant: Tenant) -> Problem:
        kind, name = tenant
        detail = (
            f"{self._turns.max_queued} calls of the {kind} {name} already wait for their turn; send fewer calls at "
            "once, or raise TIDEGATE_MAX_QUEUED_CALLS."
        )
        return Problem("too_many_queued", detail, members={"limit": self._turns.max_queued})


def turn_of(scope: Scope) -> Turn:
    """Return the turn of the call that an application serves."""
    turn: Turn = scope["turn"]
    return turn


def tenant_of(scope: Scope) -> Tenant:
    """Return the tenant of a call."""
    caller = scope.get("caller")
    if caller is not None and caller.key is not None:
        return "key", caller.key.name
    # Calls without a caller are those of the page. Their paths name jobs, too, but anybody may choose those names.
    job = _JOB.match(scope["path"]) if caller is not None else None
    if job is not None:
        return "job", job[1]
    return "address", network(scope["client"][0]) if scope.get("client") else ""
