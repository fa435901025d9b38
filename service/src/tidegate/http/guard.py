"""Checks of the host, origin, key, size and content type of a request, before its body is read.

The middleware is plain ASGI, because Starlette's base class takes longer than the requests themselves.
"""

import re
from collections import Counter, deque
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.auth.callers import CallerError, authenticate
from tidegate.auth.keyring import Keyring
from tidegate.auth.usage import KeyUsage
from tidegate.http.call import call_of
from tidegate.http.problems import Problem, incomplete_body, problem_of, refuse
from tidegate.http.turns import NEVER_QUEUED, Tenant, Turns, tenant_of

FREE_BYTES = 16 * 1024
"""First bytes of each body, which do not count. Small reports are therefore accepted while large bodies are refused."""


class BodyMemory:
    """The bytes of bodies beyond their first ``FREE_BYTES``, in total and by tenant.

    One tenant can use half of the memory, so that the others can still send large bodies.

    Args:
        max_bytes: Maximum number of bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._of: Counter[Tenant] = Counter()

    @property
    def held(self) -> int:
        """Number of bytes that count."""
        return self._held

    def body(self, tenant: Tenant) -> "HeldBody":
        """Return the memory of a new body of a tenant."""
        return HeldBody(self, tenant)

    def change(self, tenant: Tenant, by: int) -> bool:
        """Add a number of bytes and return True, or return False if they are over the limit."""
        if by > 0 and (self._held + by > self.max_bytes or self._of[tenant] + by > self.max_bytes // 2):
            return False
        self._held += by
        self._of[tenant] += by
        if not self._of[tenant]:
            del self._of[tenant]
        return True


class HeldBody:
    """The memory of one body."""

    __slots__ = ("_counted", "_memory", "_tenant")

    def __init__(self, memory: BodyMemory, tenant: Tenant) -> None:
        self._memory, self._tenant, self._counted = memory, tenant, 0

    def grow(self, size: int) -> bool:
        """Record that the body has ``size`` bytes, and return True. Return False if there is no memory for them."""
        counted = size - FREE_BYTES
        if counted <= self._counted:
            return True
        if not self._memory.change(self._tenant, counted - self._counted):
            return False
        self._counted = counted
        return True

    def release(self) -> None:
        """Free the memory."""
        if self._counted:
            self._memory.change(self._tenant, -self._counted)
            self._counted = 0


LOOPBACK_HOST = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
PAGES = re.compile(r"/|/(login|logout|live)|/(jobs|static)/.*")
"""Paths of the operators' page. A cookie identifies the users, and the forms contain a token."""
WITH_BODY = ("POST", "PUT", "PATCH")
PUBLIC = ("/livez", "/readyz")
"""Paths of the health probes, which need no key."""
FORM = b"application/x-www-form-urlencoded"

Headers = Mapping[bytes, bytes]


class Guard:
    """A middleware that refuses requests before their bodies are read.

    Without keys, the middleware protects the service from other sites that a user has open in a browser. Such a site
    can send requests to 127.0.0.1. The middleware refuses the ``Origin`` of such a site, also in the preflight request
    that a browser sends before a request with ``application/json``. A site can have a host name that resolves to
    127.0.0.1, so the middleware also checks the ``Host`` header.

    Args:
        app: The application.
        max_body_bytes: Maximum size of a body.
        memory: Memory for the bodies of all requests.
        keyring: The keys, or None if the service has no keys.
        usage: Counter of the calls of each key.
        turns: The turns of calls. Refused calls take turns, too, because many refusals also delay other calls.
        loopback_only: Whether to accept only requests to a loopback host.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        memory: BodyMemory,
        keyring: Keyring | None,
        usage: KeyUsage,
        turns: Turns,
        loopback_only: bool,
    ) -> None:
        self.app, self.max_body_bytes, self.keyring, self.loopback_only = app, max_body_bytes, keyring, loopback_only
        self.memory, self.usage, self.turns = memory, usage, turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it with a problem."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = self._refusal(scope, dict(scope["headers"]))
        if problem is not None:
            await self._refuse(scope, problem, receive, send)
            return
        tenant = tenant_of(scope)
        problem = None if scope["path"] in NEVER_QUEUED else self.turns.full(tenant)
        if problem is not None:
            await refuse(scope, problem)(scope, receive, send)
            return
        body = self.memory.body(tenant)
        try:
            # A client that sends its body slowly must not keep the turn of a call, so the body is read first.
            messages = await self._read(receive, body)
            if isinstance(messages, Problem):
                body.release()
                await self._refuse(scope, messages, receive, send)
                return
            call_of(scope).body_bytes = sum(len(message.get("body", b"")) for message in messages)

            async def replay() -> Message:
                return messages.popleft() if messages else await receive()

            await self.app(scope, replay, send)
        finally:
            body.release()

    async def _refuse(self, scope: Scope, problem: Problem, receive: Receive, send: Send) -> None:
        """Answer with a problem in a turn of the tenant, or at once if its queue is full."""
        tenant, answer = tenant_of(scope), refuse(scope, problem)
        if self.turns.full(tenant) is None:
            await self.turns.serve(tenant, scope, 0, lambda: answer(scope, receive, send))
        else:
            await answer(scope, receive, send)

    async def _read(self, receive: Receive, body: HeldBody) -> deque[Message] | Problem:
        """Return the messages of a body, or the problem with which to refuse it."""
        messages, size = deque[Message](), 0
        while not messages or messages[-1].get("more_body"):
            messages.append(message := await receive())
            if message["type"] == "http.disconnect":
                return incomplete_body()
            size += len(message.get("body", b""))
            if size > self.max_body_bytes:
                return self._too_large()
            if not body.grow(size):
                return self._no_memory()
        return messages

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        return (
            self._foreign_host(scope)
            or self._foreign_origin(scope, headers)
            or self._denied_access(scope, headers)
            or self._ambiguous_path(scope)
            or self._unsuitable_body(scope, headers)
        )

    def _foreign_host(self, scope: Scope) -> Problem | None:
        if not self.loopback_only:
            return None
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and LOOPBACK_HOST.fullmatch(hosts[0]):
            return None
        sent = b", ".join(hosts).decode("latin-1")
        detail = (
            f"This coordinator has no keys, so it refuses the host {sent!r}; use http://127.0.0.1, or set "
            "TIDEGATE_KEYS_FILE."
        )
        return Problem("foreign_host", detail)

    def _foreign_origin(self, scope: Scope, headers: Headers) -> Problem | None:
        if self.keyring is not None:
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
        foreign = site not in (b"none", b"same-origin") and not _opens_page(scope, headers)
        if not foreign and origin in (None, b"http://" + headers.get(b"host", b"")):
            return None
        detail = "This coordinator has no keys, so it refuses requests from other sites; set TIDEGATE_KEYS_FILE."
        return Problem("foreign_origin", detail)

    def _denied_access(self, scope: Scope, headers: Headers) -> Problem | None:
        if scope["path"] in PUBLIC or _is_page(scope):
            return None
        try:
            caller = authenticate(headers.get(b"authorization", b"").decode("latin-1"), self.keyring)
            call_of(scope).caller = caller
            if caller.key is not None:
                self.usage.request(caller.key)
        except CallerError as error:
            return problem_of(error)
        return None

    def _ambiguous_path(self, scope: Scope) -> Problem | None:
        # A rule of a proxy for a path does not match the path with an encoded slash. No name in a path has a slash.
        if b"%2f" not in scope.get("raw_path", b"").lower():
            return None
        return Problem(
            "no_such_path", "The path contains an encoded slash (%2F); send each slash of the path as it is."
        )

    def _unsuitable_body(self, scope: Scope, headers: Headers) -> Problem | None:
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self.max_body_bytes:
            return self._too_large()
        has_body = size != b"0" or b"transfer-encoding" in headers or self.keyring is None
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type == b"application/json" or scope["method"] not in WITH_BODY or not has_body:
            return None
        if content_type == FORM and _is_page(scope):
            return None
        return Problem("not_json", "Send the body as application/json.")

    def _no_memory(self) -> Problem:
        detail = (
            f"The bodies of the calls in progress take {self.memory.held} bytes, and one key can use "
            f"{self.memory.max_bytes // 2}; send fewer large calls at once, or raise TIDEGATE_MAX_BODY_MEMORY_BYTES."
        )
        return Problem("overloaded", detail)

    def _too_large(self) -> Problem:
        detail = (
            f"The body is over {self.max_body_bytes} bytes; report fewer substreams at once, or raise "
            "TIDEGATE_MAX_BODY_BYTES."
        )
        return Problem("body_too_large", detail, members={"max_body_bytes": self.max_body_bytes})


def _is_page(scope: Scope) -> bool:
    return PAGES.fullmatch(scope["path"]) is not None


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Return whether a user opens the page, for example with a link. The site with the link cannot read the answer."""
    target = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return scope["method"] == "GET" and target == (b"navigate", b"document") and _is_page(scope)
