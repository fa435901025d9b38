"""The machine of one job: commands in, answers out, one atomic transition each.

Concerns it deals with:

1. *Merging.* The coalesced watermark ``C`` is the lowest watermark over the substreams that are live, throttled, and
   never goes back. A substream of which nothing is known yet counts as "no watermark" and holds everything; so does an
   expected query that has shown no substreams yet.
2. *Batches.* What a Spark batch reports is staged and takes effect when the batch commits. A batch gets one pin, the
   ``C`` of its begin; the emitted watermark ``W`` never passes the pin of an open batch.
3. *Silence.* A substream is idle when its query is known to have found nothing of it for the idle timeout: known up to
   the begin of the last committed batch, or the last heartbeat, and no further; and what the query spent waiting for
   a coordinator that was away is no silence of anybody.
4. *Limits.* Where one lets C pass somebody (silence, retention, a lull, the clock), the record names both.
5. *Repetition.* Any command may be sent again, late, or by a run that was replaced; it then changes nothing.

Every command takes ``now_ms``; time that goes back is taken as standing still.
"""

from tidegate.domain.journal import Why
from tidegate.domain.lifecycle import Owning
from tidegate.domain.reports import Reporting


class JobMachine(Reporting, Owning):
    """One job, from its creation on."""

    def _start(self, why: Why) -> None:
        self._write("created", actor=why.actor, reason=why.reason)
        self._expect()
