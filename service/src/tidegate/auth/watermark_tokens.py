"""Watermark tokens: proofs that the coordinator emitted a watermark.

A token is a MAC (HMAC-SHA256, RFC 2104) over job, incarnation and watermark. Clients send their latest token with every
call. If the store has lost state, a valid token restores the watermark. Only a coordinator can issue a valid token, so
a client cannot push a job forward.
"""

import hmac
from base64 import urlsafe_b64encode
from functools import lru_cache

from tidegate.domain.job import TokenClaim
from tidegate.domain.results import JobWatermark

TOKENS_KEPT = 4096
"""Number of computed tokens that a replica caches."""
PROVES_NOTHING = TokenClaim(0, None)
"""Claim of an invalid token. The store ignores and counts it, because its incarnation is older than that of any job."""


class Tokens:
    """An issuer and verifier of watermark tokens with one MAC key."""

    def __init__(self, key: bytes) -> None:
        # The MAC of a text is a copy of this state with the text: hashing the key takes half of the time of a MAC.
        self._keyed = hmac.new(key, digestmod="sha256")
        # Most clients send one of the latest tokens of their job, so most tokens are in the cache.
        self._token = lru_cache(TOKENS_KEPT)(self._compute)

    def issue(self, job: str, answer: JobWatermark) -> str:
        """Return the token of an answer."""
        return self._token(job, answer.incarnation, "" if answer.watermark is None else str(answer.watermark))

    def claim(self, job: str, token: str | None) -> TokenClaim | None:
        """Return the claim that a token proves, ``PROVES_NOTHING`` for an invalid token, or None without a token."""
        if token is None:
            return None
        incarnation, _, rest = token.partition(".")
        watermark = rest.rpartition(".")[0]
        try:
            claimed = TokenClaim(int(incarnation), int(watermark) if watermark else None)
        except ValueError:
            return PROVES_NOTHING
        # The comparison uses bytes, because compare_digest refuses text that is not ASCII.
        genuine = hmac.compare_digest(self._token(job, claimed.incarnation, watermark).encode(), token.encode())
        return claimed if genuine else PROVES_NOTHING

    def _compute(self, job: str, incarnation: int, watermark: str) -> str:
        mac = self._keyed.copy()
        mac.update(f"{job}\n{incarnation}\n{watermark}".encode())
        return f"{incarnation}.{watermark}.{urlsafe_b64encode(mac.digest()[:18]).decode()}"
