"""What is refused before anything is read: foreign hosts, unknown keys, bodies that are no JSON or over the limit.

Pure ASGI, because a middleware on Starlette's base class costs more than the requests it guards.
"""

import re
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.api.access import identified
from tidegate.api.problems import Problem, of_quota
from tidegate.auth.keyring import Keyring
from tidegate.auth.usage import KeyUsage, QuotaExceeded

HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
PAGES = re.compile(r"/|/(login|logout|live)|/(jobs|static)/.*")
"""What people look at, who are known by a cookie; its forms are sent as forms, with a token that only the page has."""
WITH_BODY = ("POST", "PUT", "PATCH")
PUBLIC = ("/livez", "/readyz")
"""What probes ask, who have no key."""


class Guard:
    """:param keyring: who may call; None: anybody.
    :param loopback_only: answer only requests that name this machine's loopback as their host.

    Where nobody needs a key, a page in somebody's browser must not be able to act. It can send requests to 127.0.0.1,
    but without asking first none whose content type is ``application/json``; a browser names the page's ``Origin`` with
    them, or says that they come from another site; and a name of the page's own that leads here is not the ``Host``
    that is answered to.
    """

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, keyring: Keyring | None, usage: KeyUsage, loopback_only: bool
    ) -> None:
        self.app, self.max_body_bytes, self.keyring, self.loopback_only = app, max_body_bytes, keyring, loopback_only
        self.usage = usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = self._refusal(scope)
        if problem is None:
            began = False

            async def begin(message: Message) -> None:
                nonlocal began
                began = True
                await send(message)

            try:
                await self.app(scope, self._limited(receive), begin)
                return
            except _TooLarge:
                if began:  # a call that reads no body was answered; nobody needs the rest
                    return
                problem = self._too_large()
        scope["problem"] = problem.code
        await problem.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = dict(scope["headers"])
        if self.loopback_only:
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or not HERE.fullmatch(hosts[0].lower()):
                return Problem(
                    421,
                    "foreign_host",
                    "This coordinator has no keys, so it serves this machine alone; it does not answer to "
                    f"{', '.join(hosts)!r}.",
                )
        if self.keyring is None:
            origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
            foreign = site not in (b"none", b"same-origin") and not _opens_a_page(scope, headers)
            if foreign or origin not in (None, b"http://" + headers.get(b"host", b"")):
                return Problem(
                    403,
                    "foreign_origin",
                    "This coordinator has no keys, so it does not answer to the pages of other sites.",
                )
        page = PAGES.fullmatch(scope["path"]) is not None
        if scope["path"] not in PUBLIC and not page:
            try:
                caller = identified(headers.get(b"authorization", b"").decode("latin-1"), self.keyring)
                scope["caller"] = caller
                if caller.key is not None:
                    self.usage.request(caller.key)
            except Problem as problem:
                return problem
            except QuotaExceeded as error:
                return of_quota(error)
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self.max_body_bytes:
            return self._too_large()
        has_body = size != b"0" or b"transfer-encoding" in headers or self.keyring is None
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if page and kind == b"application/x-www-form-urlencoded":
            return None
        if scope["method"] in WITH_BODY and has_body and kind != b"application/json":
            return Problem(415, "not_json", "Send the body as application/json.")
        return None

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_body_bytes:
                raise _TooLarge
            return message

        return limited

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body_too_large",
            f"The body is over {self.max_body_bytes} bytes; report fewer substreams at once, "
            "or raise TIDEGATE_MAX_BODY_BYTES.",
            members={"max_body_bytes": self.max_body_bytes},
        )


def _opens_a_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Somebody follows a link, from a chat or a dashboard, to the operators' page; only they see the answer."""
    there = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return scope["method"] == "GET" and there == (b"navigate", b"document") and bool(PAGES.fullmatch(scope["path"]))


class _TooLarge(Exception):
    pass
