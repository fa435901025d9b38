"""The settings of a query, which are the same in all processes of a run."""

from dataclasses import dataclass, field

from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.pinned_watermarks import PinnedWatermarks


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The settings of a query.

    Attributes:
        connection: The connection to the job. Its configuration may be replaced while the query runs.
        query: Name of the query.
        declared: Substreams that hold the watermark from the start.
        available_now: Whether Spark fixes the input of all batches when the run starts.
        complete_batches: Whether each batch contains all input that existed when Spark planned it, also under
            ``availableNow``; see :meth:`Stream.complete_batches`.
        tells_output: Whether the query writes results after the commit of their rows, as windows do, and therefore
            tells its output watermark.
        pinned_watermarks: The pinned watermarks beside the checkpoint.
        choices: The choices that the checkpoint depends on; None if they are not checked.
        replaces_substreams: Whether the query may continue with other substream columns.
    """

    connection: JobConnection
    query: str
    declared: tuple[str, ...] = ()
    pinned_watermarks: PinnedWatermarks = field(default_factory=PinnedWatermarks)
    choices: QueryChoices | None = None
    replaces_substreams: bool = False
    available_now: bool = False
    complete_batches: bool = False
    tells_output: bool = False
