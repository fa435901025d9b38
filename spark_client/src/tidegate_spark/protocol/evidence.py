"""The evidence that a query has read its input: what was caught up, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ProcessingTime:
    """A processing time (Unix time), and the seconds that the run had waited for the coordinator until then."""

    at_s: float
    waited_s: float

    def age_ms(self, now: "ProcessingTime") -> int:
        """Return the age at ``now`` in milliseconds, without the time that the run has waited since."""
        return max(0, int(1000 * (now.at_s - self.at_s - (now.waited_s - self.waited_s))))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Proof that a batch and earlier batches contain all input of some substreams up to a processing time.

    Attributes:
        substreams: The substreams; None: all substreams of the query.
        at: The processing time; None: the time at which Spark planned the batch.
    """

    substreams: frozenset[str] | None = None
    at: ProcessingTime | None = None


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What the offsets tell about the input of a batch.

    Attributes:
        evidence: The evidence; None without evidence.
        partitions: The substreams that are partitions of the source, also those without a row.
    """

    evidence: Evidence | None = None
    partitions: frozenset[str] = frozenset()


NOTHING_KNOWN = BatchInput()
ALL_CAUGHT_UP = Evidence()
