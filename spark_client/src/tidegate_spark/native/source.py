"""The source of the markers: its offset is the watermark, and where that has moved it has one row.

Its reader lives in the driver, and Spark asks it for the latest offset between two batches. That is when a batch is
finished for certain, so it is then that the coordinator is told of it (:mod:`tidegate_spark.native.finished`).
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.choice import Choice
from tidegate_spark.config import JobConfig
from tidegate_spark.delivery import Delivery, settled
from tidegate_spark.errors import InvalidUsage, JobDeleted, Refused, TidegateError
from tidegate_spark.heartbeat import HEARTBEATS_FAIL
from tidegate_spark.logs import Failing
from tidegate_spark.native.finished import Finished, Since
from tidegate_spark.native.folding import WORD, another_checkpoint, documents_of
from tidegate_spark.native.triggers import check_trigger
from tidegate_spark.pinned_watermarks import PinnedWatermarks
from tidegate_spark.windows.markers import RUNS_TO_THE_END, Watermark

HEARTBEAT_S = 1.0
PAUSE_AFTER_A_LOOK = 9
"""Pause after a check that finds no finished batches, as a multiple of the check's duration."""

LOOKS_OF_A_RUN = 2
"""After how many batches a run over what is there looks for the watermark that its rows have moved: the second time for
what other inputs of the same query have told meanwhile.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""Spark's timestamps go on, Python's do not."""


@dataclass(frozen=True)
class Followed:
    """What is followed, by which query; in values that JSON has.

    ``input``: stands for one input in one run of its program. ``frame``: size, slide and offset of the windows whose
    ends the watermark moves by; None: it moves by milliseconds. ``limited``: as in :meth:`Stream.rate_limited_source`.
    ``retained``: how many batches Spark remembers. ``choice``: what the checkpoint depends on, see :class:`Choice`.
    """

    input: str
    url: str
    job: str
    config: JobConfig | None
    query: str
    checkpoint: str
    declared: Sequence[str]
    limited: bool | None
    frame: Mapping[str, int] | None
    retained: int
    choice: Mapping[str, Any]
    replaces_substreams: bool


class Marker(InputPartition):
    """The row at a watermark."""

    def __init__(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms


class Talk:
    """What the driver's reader talks by."""

    def __init__(self, delivery: Delivery, finished: Finished) -> None:
        self.delivery, self.finished = delivery, finished
        self.telling = Failing(
            delivery.log, "the coordinator does not take what was finished", "the coordinator takes what was finished"
        )
        self.beating = Failing(delivery.log, *HEARTBEATS_FAIL)


class Following(Watermark):
    """The reader. It is made in the driver, where it talks, and in an executor, where it only reads a marker."""

    def __init__(self, followed: Followed, key: str | None, schema: StructType) -> None:
        # Here, for the job's own module has to do with this one.
        from tidegate_spark.job import connect

        self._followed = followed
        self._gate = connect(followed.url, job=followed.job, config=followed.config, key=key, on_outage="continue")
        coordinator = self._gate.coordinator
        options = {"url": coordinator.watermark_url()}
        if coordinator.authorization:
            options["authorization_token"] = coordinator.authorization
        frame = followed.frame or {"size": 1, "slide": 1, "offset": 0}
        super().__init__(options | {name: str(value) for name, value in frame.items()})
        self._columns = schema.fieldNames()
        self._run = uuid.uuid4().hex
        self._talk: Talk | None = None
        self._skew_ms: int | None = None
        self._returned: tuple[float | None, float | None] = (None, None)
        self._looks = LOOKS_OF_A_RUN
        self._tell_again = self._beat_again = 0.0
        self._calls = 0

    def prepareForTriggerAvailableNow(self) -> None:
        self._only_what_is_there = True

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Tells of what is finished, and gives the watermark.

        Under ``availableNow`` it goes on with the watermark that the run itself moves, and comes to an end with it:
        where others move it, that is for the next run.

        :raises Refused: where there is no job, and no rules to create it from.
        :raises JobDeleted: if the job was deleted; the next start of the query creates it again.
        """
        if self._only_what_is_there:
            since = self._tell()
            if since.rows:
                self._looks = LOOKS_OF_A_RUN
            if since.batches and self._looks:
                self._looks -= 1
                self._look()
        else:
            # Report in every call: a query that is stopped after its last batch does not call this again.
            quiet = self._tell_unless_paused()
            if self._is_time():
                self._look()
                if quiet:
                    self._beat()
        self._returned = self._returned[1], time.time()
        self._calls += 1
        return self._offset_after(start)

    def _tell_unless_paused(self) -> bool:
        """Report finished batches; return whether Spark has certainly finished none since the last check."""
        began = time.monotonic()
        if began < self._tell_again and not self._is_time():
            return False
        quiet = self._tell().quiet
        if quiet:
            # Spark waits for the file system meanwhile.
            ended = time.monotonic()
            self._tell_again = ended + PAUSE_AFTER_A_LOOK * (ended - began)
        return quiet

    def _offset_after(self, start: dict[str, Any] | None) -> dict[str, Any]:
        """Each run of the query begins with a marker, for Spark forgets with the end of one where each of several
        watermarks has been, and until it knows again it takes all of them for zero.
        """
        offset = super()._offset_after(start)
        return offset if offset["watermark"] is None else offset | {"run": self._run}

    def _reached(self, state: dict[str, Any]) -> int | None:
        watermark: int | None = state["watermark"]
        if self._followed.frame is not None:
            watermark = super()._reached(state)
        elif watermark is not None:
            watermark -= 1  # Spark takes what is at its watermark for late
        return None if watermark is None else min(watermark, _LATEST_MS)

    def _tell(self) -> Since:
        talk = self._talking()
        try:
            since = talk.finished.look(self._calls)
            self._calls = 0
            if since.batches:
                self._check_name(talk.delivery.checkpoint)
                if talk.delivery.max_future_skew_ms != self._skew_ms:
                    self._leave_word(talk.delivery)
        except JobDeleted:
            raise
        except Refused as refusal:
            talk.telling.failed(refusal)
            return Since(True, False, False, False)
        if since.reported:
            talk.telling.worked()
            talk.delivery.adopt_choice()
        return since

    def _leave_word(self, delivery: Delivery) -> None:
        """Says to the tasks what the job's rules say, as far as it matters to them."""
        self._skew_ms = delivery.max_future_skew_ms
        said = {"input": self._followed.input, "max_future_skew_ms": self._skew_ms}
        delivery.checkpoint.write(WORD, said)

    def _check_name(self, documents: Checkpoint) -> None:
        """:raises InvalidUsage: where another input of the query has begun to keep its documents here as well."""
        if (documents.read(WORD) or {}).get("input") != self._followed.input:
            raise InvalidUsage(
                f"Two native inputs of this query have queryName={self._followed.query!r}. Give each a name of its own."
            )

    def _beat(self) -> None:
        """Tells that the query is caught up, as of the last moment that is known of.

        Since the call before this one Spark has run no batch: it found nothing new when it looked, which was after the
        call before that.
        """
        looked_at, _ = self._returned
        began = time.monotonic()
        if looked_at is None or began < self._beat_again:
            return
        talk = self._talking()
        try:
            talk.delivery.heartbeat(talk.delivery.run(), time.time() - looked_at, talk.delivery.told_up_to)
        except JobDeleted:
            raise
        except TidegateError as error:
            talk.beating.failed(error)
        else:
            talk.beating.worked()
        ended = time.monotonic()
        # Spark waits meanwhile.
        self._beat_again = ended + max(HEARTBEAT_S, 10 * (ended - began))

    def _talking(self) -> Talk:
        """Begins to talk with the first call: only now is it clear that this is the driver, and under which trigger."""
        if self._talk is None:
            followed = self._followed
            settles = settled(followed.limited, self._only_what_is_there)
            checkpoint = documents_of(followed.checkpoint, followed.query)
            if not checkpoint.started():
                raise another_checkpoint(followed.checkpoint)
            if not RUNS_TO_THE_END:
                check_trigger(checkpoint)
            pinned_watermarks = PinnedWatermarks(checkpoint)
            delivery = Delivery(
                self._gate,
                followed.query,
                tuple(followed.declared),
                checkpoint,
                pinned_watermarks,
                settles,
                here=True,
                choice=Choice(**followed.choice),
                replaces_substreams=followed.replaces_substreams,
            )
            delivery.start(adopts=False)  # folds of earlier runs come first
            self._leave_word(delivery)
            self._talk = Talk(delivery, Finished(delivery, followed.frame is None, followed.retained))
        return self._talk

    def commit(self, end: dict[str, Any]) -> None:
        # Spark has planned another batch: what it finishes is to be reported in the next call.
        self._tell_again = 0.0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._tell_again = 0.0
        watermark = end["watermark"]
        # Spark's watermark begins at the epoch, and a marker from before it would move nothing.
        return [Marker(watermark)] if start != end and watermark is not None and watermark > 0 else []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Marker)
        at = _EPOCH + timedelta(milliseconds=partition.watermark_ms)
        event_time = self._followed.choice["event_time"]
        yield tuple(at if name == event_time else None for name in self._columns)

    def stop(self) -> None:
        if self._talk is not None:
            self._talk.delivery.close()


class Markers(DataSource):
    """Rows of any schema: null, but for the event time."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-native"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        followed = Followed(**json.loads(self.options["followed"]))
        return Following(followed, self.options.get("authorization_token"), schema)
