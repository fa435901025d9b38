"""Who looks at the page: a cookie that proves a key was shown, and a token that proves a form came from the page.

Both are MACs under the key that all replicas share, so any of them knows what another gave out, and nothing is kept.
"""

import hashlib
import hmac
import secrets
import time

from fastapi import Request, Response

from tidegate.api.access import Caller
from tidegate.auth.keyring import Key, Keyring
from tidegate.auth.usage import Limit

COOKIE = "tidegate_session"
LASTS_S = 12 * 3600
FAILURES_PER_MINUTE = 10


class Sessions:
    """``keyring`` None: anybody may look, and there is nothing to log in to."""

    def __init__(self, key: bytes, keyring: Keyring | None) -> None:
        self._key = hmac.digest(key, b"sessions", "sha256")
        self.keyring = keyring
        self.failed_logins = Limit(FAILURES_PER_MINUTE / 60, FAILURES_PER_MINUTE)

    def open(self, request: Request, response: Response, key: Key) -> None:
        """From now on whoever gets this answer is known by ``key``, until it is revoked or ``LASTS_S`` have passed."""
        claim = f"{key.id}.{int(time.time()) + LASTS_S}.{secrets.token_hex(8)}"
        response.set_cookie(
            COOKIE,
            f"{claim}.{self._mac(claim, key)}",
            max_age=LASTS_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def close(self, response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def caller(self, request: Request) -> Caller | None:
        """Who looks; None: nobody who is known."""
        if self.keyring is None:
            return Caller(None)
        claim, _, mac = request.cookies.get(COOKIE, "").rpartition(".")
        key_id, _, rest = claim.partition(".")
        key = self.keyring.known(key_id)
        if key is None or not hmac.compare_digest(self._mac(claim, key).encode(), mac.encode()):
            return None
        return Caller(key) if int(rest.partition(".")[0]) > time.time() else None

    def form_token(self, request: Request) -> str:
        """What every form carries: no other site can read it, and none of another session is taken."""
        session = request.cookies.get(COOKIE, "")
        return hmac.new(self._key, b"form\n" + session.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()

    def sent_from_here(self, request: Request, token: str) -> bool:
        return hmac.compare_digest(self.form_token(request).encode(), token.encode(errors="surrogateescape"))

    def _mac(self, claim: str, key: Key) -> str:
        # With the hash of the secret: a key of another secret under the same id is another key.
        return hmac.new(self._key, f"{claim}\n{key.sha256}".encode(), hashlib.sha256).hexdigest()
