"""Turns of calls: tenants share a replica by what their calls cost.

A call waits until the event loop has done the work for all calls before it. Without turns, a tenant with many
connections or expensive calls delays all other tenants.

A tenant is the name of a key. Without keys, a tenant is a job, because all clients of a service on loopback have the
same address. Further calls, such as the page and its login, belong to the tenant of their client address.
"""

import asyncio
import heapq
import itertools
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.auth.usage import network
from tidegate.http.call import call_of
from tidegate.http.problems import Problem, refuse

NEVER_QUEUED = ("/livez", "/readyz", "/metrics")
"""Paths of the calls that monitor a replica. They must answer while the replica is busy."""
LIMITED_S = 10.0
"""Time in seconds for which the bounds apply after calls of two tenants were in progress."""
BEFORE_S = 0.0001
"""Cost in seconds of a call before its turn: its head is parsed, and its key is checked."""
BYTE_S = 0.2e-6
"""Cost in seconds of a byte of a body, outside this process: Redis needs about 6 µs for a substream."""
CALL_BYTES = 16 * 1024
"""Number of bytes of a body that count as one call in progress."""
_JOB = re.compile(r"/v1/jobs/([^/:]+)")

Tenant = tuple[str, str]
"""The kind of a tenant and its name: a key, a job or a client address."""


class Turns:
    """The calls in progress, and the queue of each tenant.

    **What a call costs**: the time for which it occupies the event loop, ``BEFORE_S``, and ``BYTE_S`` for each byte of
    its body. When no call waits, all tenants begin again at the same cost.

    **Who is next**: the tenant whose calls have cost least. A tenant that comes to wait has at least the cost at which
    the last waiting call started (start-time fair queueing), so a pause saves no credit. The first call of a tenant
    starts at once, unless its calls have cost more than that.

    **What waits**: three bounds apply while several tenants make calls, but not to the first call of a tenant.

    - At most ``max_active`` calls are in progress, besides one call of each tenant, so slow calls of others cannot
      block a tenant.
    - The calls in progress of one tenant have at most ``max_active`` times ``CALL_BYTES`` of bodies, or are one call.
    - In each pass of the event loop, at most ``max_active`` calls start. Many of them share a round trip to Redis,
      which saves up to a third of the processor time. A call saves nothing if it is large or does not use Redis. Only
      one such call starts in a pass.

    The bounds apply for ``LIMITED_S`` after a tenant's first call that arrives while calls of others are in progress. A
    tenant that has the replica for itself has no bounds.

    Args:
        max_active: Maximum number of calls in progress while the bounds apply, besides one call of each tenant.
        max_queued: Maximum number of calls in the queue of one tenant. Further calls are refused.
        clock: Function that returns a monotonic time in seconds.

    Attributes:
        queued: Number of calls in all queues. Another thread reads it for the metrics.
    """

    def __init__(self, max_active: int, max_queued: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_queued, self._max_active, self._clock = max_queued, max_active, clock
        self._active = self.queued = 0
        self._of: dict[Tenant, _Calls] = {}
        # A heap of tenants by cost, with at most one entry for each. The cost in an entry may be out of date.
        self._order: list[tuple[float, int, _Calls]] = []
        self._entries = itertools.count()
        self._reached_s = self._highest_s = 0.0  # the cost of the tenant whose waiting call started last, and of any
        self._work, self._follows = 0, False  # the work of this pass of the event loop, counted as calls
        self._limited_until = -math.inf

    def full(self, tenant: Tenant) -> Problem | None:
        """Return the problem with which to refuse a call of a tenant whose queue is full, or None if it has room."""
        calls = self._of.get(tenant)
        if calls is None or len(calls.queue) < self.max_queued:
            return None
        kind, name = tenant
        detail = (
            f"{self.max_queued} calls of the {kind} {name} already wait for their turn; send fewer calls at once, or "
            "raise TIDEGATE_MAX_QUEUED_CALLS."
        )
        return Problem("too_many_queued", detail, members={"limit": self.max_queued})

    def begin(self, tenant: Tenant, size: int = 0) -> "Turn | None":
        """Start a call and return its turn, or return None if the call must :meth:`wait` for its turn.

        Args:
            tenant: The tenant of the call.
            size: Number of bytes of the body.
        """
        calls = self._known(tenant)
        is_first = not calls.active and not calls.queue
        if is_first and self._active:
            self._limited_until = self._clock() + LIMITED_S
        if self._is_limited():
            starts_at_once = is_first and calls.cost_s <= self._reached_s
            if not starts_at_once and (self.queued or not self._has_room() or not self._has_place(calls)):
                return None
        return self._start(calls, size)

    async def wait(self, tenant: Tenant, size: int = 0) -> "Turn":
        """Return the turn of a call when it starts."""
        calls, call = self._known(tenant), _Waiting(size)
        calls.queue.append(call)
        self.queued += 1
        self._list(calls)
        self._follow()
        try:
            await call.future
        except asyncio.CancelledError:
            if call.turn is not None:  # cancelled after it was started
                call.turn.end()
            elif call in calls.queue:
                calls.queue.remove(call)
                self.queued -= 1
                self._follow()
            raise
        assert call.turn is not None
        return call.turn

    async def serve(self, tenant: Tenant, scope: Scope, size: int, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call in a turn of a tenant.

        While the bounds apply, the tenant is charged for the time that the call takes on the event loop.
        """
        turn = self.begin(tenant, size) or await self.wait(tenant, size)
        call_of(scope).end_turn = turn.end
        try:
            if self._is_limited():
                charged = _Charged(call(), turn)
                await charged
                self._known(tenant).use_redis = charged.has_waited
            else:
                await call()
        finally:
            turn.end()

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """Add to the cost of the calls of a tenant."""
        calls = self._known(tenant)
        calls.cost_s += seconds
        self._highest_s = max(self._highest_s, calls.cost_s)

    def end(self, tenant: Tenant, size: int) -> None:
        """End a call, and let waiting calls start."""
        calls = self._of[tenant]
        self._active -= 1
        calls.active -= 1
        calls.bytes -= size
        self._list(calls)  # to forget its cost when the others have reached it
        self._follow()

    def _known(self, tenant: Tenant) -> "_Calls":
        """Return the calls of a tenant. Without waiting calls, the cost of the tenant is at least ``_reached_s``."""
        calls = self._of.get(tenant)
        if calls is None:
            calls = self._of[tenant] = _Calls(tenant)
            self._list(calls)
        if not calls.queue:
            calls.cost_s = max(calls.cost_s, self._reached_s)
        return calls

    def _list(self, calls: "_Calls") -> None:
        if not calls.is_listed:
            calls.is_listed = True
            heapq.heappush(self._order, (calls.cost_s, next(self._entries), calls))

    def _is_limited(self) -> bool:
        return self._clock() < self._limited_until

    def _has_place(self, calls: "_Calls") -> bool:
        """Return whether the bounds on calls in progress allow another call of a tenant."""
        return not calls.active or (self._active < self._max_active and calls.bytes < self._max_active * CALL_BYTES)

    def _has_room(self) -> bool:
        """Return whether another call may start in this pass of the event loop."""
        return self._work < self._max_active

    def _start(self, calls: "_Calls", size: int) -> "Turn":
        self._work += 1 if calls.use_redis and size <= CALL_BYTES else self._max_active
        self._active += 1
        calls.active += 1
        calls.bytes += size
        self._follow()
        self.charge(calls.tenant, BEFORE_S + size * BYTE_S)
        return Turn(self, calls.tenant, size)

    def _follow(self) -> None:
        """Call :meth:`_pass` in the next pass of the event loop, after it has read the sockets."""
        if not self._follows:
            self._follows = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """Let waiting calls start, those of the tenants with the lowest cost first."""
        self._follows, self._work = False, 0
        is_limited, passed_over = self._is_limited(), list[_Calls]()
        while self._order and (self._has_room() or not is_limited):
            cost_s, _, calls = heapq.heappop(self._order)
            calls.is_listed = False
            if cost_s < calls.cost_s:
                self._list(calls)
            elif calls.queue and (not is_limited or self._has_place(calls)):
                self._reached_s = max(self._reached_s, cost_s)
                self._release(calls)
            elif calls.queue or (passed_over and not calls.active):
                passed_over.append(calls)
            elif not calls.active:  # the others have reached its cost
                del self._of[calls.tenant]
        for calls in passed_over:
            self._list(calls)
        if not self.queued:
            self._reached_s = self._highest_s

    def _release(self, calls: "_Calls") -> None:
        """Let the oldest waiting call of a tenant start, unless it was cancelled."""
        call = calls.queue.popleft()
        self._list(calls)
        self.queued -= 1
        if call.future.done():
            return
        call.future.set_result(None)  # before the next pass, which then knows what this call costs
        call.turn = self._start(calls, call.size)


class _Waiting:
    """A call that waits: the size of its body, and its turn when it starts."""

    __slots__ = ("future", "size", "turn")

    def __init__(self, size: int) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.size = size
        self.turn: Turn | None = None


class _Calls:
    """The calls of a tenant.

    Attributes:
        tenant: The tenant.
        active: Number of calls in progress.
        bytes: Number of bytes of their bodies.
        cost_s: Cost of the calls since calls wait.
        is_listed: Whether the tenant has an entry in the order of tenants.
        queue: The calls that wait to start.
        use_redis: Whether the latest call has waited, as calls do that use Redis.
    """

    __slots__ = ("active", "bytes", "cost_s", "is_listed", "queue", "tenant", "use_redis")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.active, self.bytes, self.cost_s, self.is_listed = tenant, 0, 0, 0.0, False
        self.use_redis = True
        self.queue: deque[_Waiting] = deque()


class Turn:
    """The turn of one call."""

    __slots__ = ("_has_ended", "_size", "_tenant", "_turns")

    def __init__(self, turns: Turns, tenant: Tenant, size: int) -> None:
        self._turns, self._tenant, self._size, self._has_ended = turns, tenant, size, False

    def charge(self, seconds: float) -> None:
        """Record that the call occupied the event loop for a time, also after the end of the turn."""
        self._turns.charge(self._tenant, seconds)

    def end(self) -> None:
        """Let the next call start. Repeated calls of this method have no effect."""
        if not self._has_ended:
            self._has_ended = True
            self._turns.end(self._tenant, self._size)


class _Charged:
    """An awaitable that charges a turn for the time between the waits of a call."""

    __slots__ = ("_call", "_turn", "has_waited")

    def __init__(self, call: Awaitable[None], turn: Turn) -> None:
        self._call, self._turn, self.has_waited = call, turn, False

    def __await__(self) -> Generator[Any, None, None]:
        steps = self._call.__await__()
        error: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                waited = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                return
            finally:
                self._turn.charge(time.perf_counter() - began)
            try:
                self.has_waited = True
                yield waited
                error = None
            except BaseException as raised:  # noqa: BLE001  # the call gets it
                error = raised


class InTurn:
    """A middleware that serves calls in turn. The body of a call must have arrived.

    A turn ends with the call, or earlier by :attr:`.HttpCall.end_turn`: when the answer begins, so that event streams
    and slow readers do not keep the turn, and before a call waits for a watermark.

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
        problem = self._turns.full(tenant)  # the queue may have filled while the body arrived
        if problem is not None:
            await refuse(scope, problem)(scope, receive, send)
            return
        size = call_of(scope).body_bytes
        await self._turns.serve(tenant, scope, size, lambda: self._app(scope, receive, send))


def tenant_of(scope: Scope) -> Tenant:
    """Return the tenant of a call."""
    caller = call_of(scope).caller
    if caller is not None and caller.key is not None:
        return "key", caller.key.name
    # Calls without a caller are those of the page, and calls without a valid key. Their client chooses the path, so a
    # job in the path does not identify it.
    job = _JOB.match(scope["path"]) if caller is not None else None
    if job is not None:
        return "job", job[1]
    return "address", network(scope["client"][0]) if scope.get("client") else ""
