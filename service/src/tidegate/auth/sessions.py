"""Sessions of the operators' page: signed cookies and signed forms.

All replicas share the signing key and the clock of Redis, so each replica accepts the cookies and forms of all
replicas. Sessions are not stored.
"""

import hashlib
import secrets
import time
from collections.abc import Callable

from fastapi import Request, Response
from itsdangerous import BadSignature, Signer, TimestampSigner

from tidegate.auth.callers import Caller
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import Key
from tidegate.auth.usage import Limit

COOKIE = "tidegate_session"
SESSION_S = 12 * 3600
MAX_AHEAD_S = 60
"""Maximum time by which the clock of the replica that opened a session is ahead. Replicas read the clock of Redis at
different times, and another server has another clock after a failover."""
FAILURES_PER_MINUTE = 10


class Sessions:
    """The sessions of the page.

    Args:
        key: Signing key that all replicas share.
        keyring: The API keys, or None if the page needs no login.
        now_s: Function that returns the Unix time of the sessions.
    """

    def __init__(self, key: bytes, keyring: Keyring | None, now_s: Callable[[], float] = time.time) -> None:
        self._key, self._now_s = key, now_s
        self.keyring = keyring
        self.failed_logins = Limit(FAILURES_PER_MINUTE / 60, FAILURES_PER_MINUTE)

    def open(self, request: Request, response: Response, key: Key) -> None:
        """Set a session cookie, which expires after ``SESSION_S`` seconds, or when the key expires or is revoked."""
        response.set_cookie(
            COOKIE,
            self._cookie_signer(key).sign(f"{key.id}.{secrets.token_hex(8)}").decode(),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def close(self, response: Response) -> None:
        """Delete the session cookie."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def caller(self, request: Request) -> Caller | None:
        """Return the caller of a request, or None if it has no valid session."""
        if self.keyring is None:
            return Caller(None)
        cookie = _cookie(request)
        key = self.keyring.key_with_id(cookie.partition(".")[0])
        if key is None:
            return None
        try:
            _, opened = self._cookie_signer(key).unsign(cookie, return_timestamp=True)
        except (BadSignature, UnicodeError):
            return None
        is_open = -MAX_AHEAD_S <= self._now_s() - opened.timestamp() <= SESSION_S
        return Caller(key) if is_open else None

    def form_token(self, request: Request) -> str:
        """Return the token of a form. The token is bound to the session, and other sites cannot read it."""
        return self._form_signer.get_signature(_cookie_bytes(request)).decode()

    def accepts_form(self, request: Request, token: str) -> bool:
        """Return whether a form token belongs to the session of the request."""
        signature = token.encode(errors="surrogateescape")
        return self._form_signer.verify_signature(_cookie_bytes(request), signature)

    @property
    def _form_signer(self) -> Signer:
        return Signer(self._key, salt="form", digest_method=hashlib.sha256)

    def _cookie_signer(self, key: Key) -> TimestampSigner:
        # With the hash in the salt, a cookie is not valid for a key with the same id and another secret.
        signer = _Signer(self._key, salt=f"session {key.sha256}", digest_method=hashlib.sha256)
        signer.now_s = self._now_s
        return signer


class _Signer(TimestampSigner):
    """A signer with the clock of the sessions."""

    now_s: Callable[[], float]

    def get_timestamp(self) -> int:
        """Return the time of a new signature, in Unix seconds."""
        return int(self.now_s())


def _cookie_bytes(request: Request) -> bytes:
    return _cookie(request).encode(errors="surrogateescape")


def _cookie(request: Request) -> str:
    """Return the session cookie; an empty text unless there is exactly one, because another host may set one, too."""
    names = [cookie.partition("=")[0].strip() for cookie in request.headers.get("cookie", "").split(";")]
    return request.cookies[COOKIE] if names.count(COOKIE) == 1 else ""
