"""The settings of a query, which are the same in all processes of a run."""

from dataclasses import dataclass, field
from enum import Enum

from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.pinned_watermarks import PinnedWatermarks


class InputComplete(Enum):
    """The time at which Spark fixes the input of a batch, which is evidence that substreams are idle."""

    PER_BATCH = "as each batch is planned"
    PER_RUN = "for all batches of the run, as it starts"
    UNKNOWN = "never: the source limits the size of batches"

    @classmethod
    def of(cls, rate_limited: bool | None, available_now: bool) -> "InputComplete":
        """Return the value for a query; ``rate_limited`` is None unless the user has set it."""
        if rate_limited is None:
            return cls.PER_RUN if available_now else cls.PER_BATCH
        return cls.UNKNOWN if rate_limited else cls.PER_BATCH


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The settings of a query.

    Attributes:
        connection: The connection to the job. Its configuration may be replaced while the query runs.
        query: Name of the query.
        declared: Substreams that hold the watermark from the start.
        input_complete: The time at which Spark fixes the input of a batch, if the offsets of the sources do not tell.
        available_now: Whether Spark fixes the input of all batches when the run starts.
        pinned_watermarks: The pinned watermarks beside the checkpoint.
        choices: The choices that the checkpoint depends on; None if they are not checked.
        replaces_substreams: Whether the query may continue with other substream columns.
    """

    connection: JobConnection
    query: str
    declared: tuple[str, ...] = ()
    input_complete: InputComplete = InputComplete.PER_BATCH
    pinned_watermarks: PinnedWatermarks = field(default_factory=PinnedWatermarks)
    choices: QueryChoices | None = None
    replaces_substreams: bool = False
    available_now: bool = False
