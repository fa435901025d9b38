"""Sessions of the operators' page: signed cookies and signed forms.

All replicas share the signing key, so each replica accepts the cookies and forms of all replicas. Sessions are not
stored.
"""

import hashlib
import secrets

from fastapi import Request, Response
from itsdangerous import BadSignature, Signer, TimestampSigner

from tidegate.auth.callers import Caller
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import Key
from tidegate.auth.usage import Limit

COOKIE = "tidegate_session"
SESSION_S = 12 * 3600
FAILURES_PER_MINUTE = 10


class Sessions:
    """The sessions of the page.

    Args:
        key: Signing key that all replicas share.
        keyring: The API keys, or None if the page needs no login.
    """

    def __init__(self, key: bytes, keyring: Keyring | None) -> None:
        self._key = key
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
            self._cookie_signer(key).unsign(cookie, max_age=SESSION_S)
        except (BadSignature, UnicodeError):
            return None
        return Caller(key)

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
        return TimestampSigner(self._key, salt=f"session {key.sha256}", digest_method=hashlib.sha256)


def _cookie_bytes(request: Request) -> bytes:
    return _cookie(request).encode(errors="surrogateescape")


def _cookie(request: Request) -> str:
    """Return the session cookie; an empty text if there is none, or several, because another host may have set one."""
    names = [cookie.partition("=")[0].strip() for cookie in request.headers.get("cookie", "").split(";")]
    return request.cookies[COOKIE] if names.count(COOKIE) == 1 else ""
