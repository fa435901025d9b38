"""Watermark tokens: a client returns its latest token, which restores a watermark that the store has lost."""

from tidegate.domain.emission import raise_watermark
from tidegate.domain.journal import Kind
from tidegate.domain.numbers import above
from tidegate.domain.state import JobState, TokenClaim


def accept(job: JobState, token: TokenClaim | None) -> None:
    """Apply the claim of a verified token; ignore and count a token of an older incarnation."""
    if token is None:
        return
    if token.incarnation < job.incarnation:
        job.tokens_ignored += 1
        return
    was_lost = token.incarnation > job.incarnation or above(token.watermark, job.watermark)
    job.incarnation = token.incarnation
    raise_watermark(job, token.watermark)
    if was_lost:
        job.journal.write(job.now_ms, Kind.WATERMARK_RESTORED, watermark=token.watermark)
