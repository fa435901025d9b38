"""Watermark tokens: proof that the coordinator once emitted a watermark, kept by clients for its bad days.

A token is a MAC (HMAC-SHA256, RFC 2104) over job, incarnation and watermark. A client sends its last one along with
every call; where the store has lost what it had emitted, a valid token heals it. Nobody without the key can make one,
so no client can push a job ahead.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode

from tidegate.domain.results import WatermarkState
from tidegate.domain.state import TokenClaim

PROVES_NOTHING = TokenClaim(0, None)
"""What an invalid token comes to: older than any incarnation, so it is ignored, and counted with the job."""


class Tokens:
    """Issues and checks tokens under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, job: str, answer: WatermarkState) -> str:
        return self._token(job, answer.incarnation, "" if answer.watermark is None else str(answer.watermark))

    def claim(self, job: str, token: str | None) -> TokenClaim | None:
        """What the token proves; None where there is none."""
        if token is None:
            return None
        incarnation, _, rest = token.partition(".")
        watermark = rest.rpartition(".")[0]
        try:
            claimed = TokenClaim(int(incarnation), int(watermark) if watermark else None)
        except ValueError:
            return PROVES_NOTHING
        # Both sides as bytes: compare_digest refuses text that is not ASCII.
        genuine = hmac.compare_digest(self._token(job, claimed.incarnation, watermark).encode(), token.encode())
        return claimed if genuine else PROVES_NOTHING

    def _token(self, job: str, incarnation: int, watermark: str) -> str:
        mac = hmac.new(self._key, f"{job}\n{incarnation}\n{watermark}".encode(), hashlib.sha256).digest()
        return f"{incarnation}.{watermark}.{urlsafe_b64encode(mac[:18]).decode()}"
