"""The function that Spark calls for every batch.

begin and pin → fold and report (staged) → split at the pin → the user's function → late rows → commit. With windows:
split at the pin → the windows' state → late rows → commit → the user's function gets the windows that are closed.

Invariants:

1. A batch is judged by one pin for ever. The pin is written beside the checkpoint before a row is judged by it.
2. A row is on time, updated, late, future or without an event time; none is in two of these, none in no one.
3. What the batch reported counts only once its rows are where they go: everything the user does with them has returned,
   or they are in the state of the windows.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from tidegate_spark.batch import Batch, Committed, Holder
from tidegate_spark.columns import Columns
from tidegate_spark.delivery import Delivery, Opened
from tidegate_spark.errors import InvalidUsage, Refused, TidegateError
from tidegate_spark.fold import Fold, Mode, on_driver, on_executors
from tidegate_spark.judgement import HIGHEST, Goes, Judgement, LateDisposition
from tidegate_spark.measuring import Measuring, Order, needed_by
from tidegate_spark.outage import MOMENT_S, Patience
from tidegate_spark.reporter import SUBSTREAMS_PER_CALL, Reporter, batch_of
from tidegate_spark.windows.frame import Frame
from tidegate_spark.windows.windowing import Taken, Windowing

BatchFunction = Callable[[DataFrame, Batch], Any]

NAMED = 5
"""How many substreams a line of the log names."""


@dataclass
class Hook:
    """One start of one query."""

    delivery: Delivery
    columns: Columns
    mode: Mode
    function: BatchFunction | Windowing
    late_function: BatchFunction | None
    null_goes: Goes
    future_goes: Goes
    persist: bool
    report_tasks: int
    of_timestamps: bool
    progress: bool
    delays: Order | Literal["none"] | None
    on_commit: Callable[[Committed], Any] | None
    _plain: bool = True
    """Which fold a batch begins with."""
    _tasks: int | None = None
    """In how many tasks it is reported."""
    _calling: bool = False
    """A function of the user is called."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run a batch."""
        try:
            self._run(df, batch_id)
        except TidegateError as error:
            if self._calling:
                raise
            level = logging.INFO if self.delivery.coordinator.stopped() else logging.ERROR
            self.delivery.log.log(level, "the batch failed: %s", error, extra={"batch": batch_id})
            # Spark prints the traceback of a failed batch three times, and messages of TidegateError need none.
            raise error.with_traceback(None) from error.__cause__

    def _run(self, df: DataFrame, batch_id: int) -> None:
        self._calling = False
        began = time.monotonic()
        try:
            opened = self.delivery.begin(batch_id)
        except Refused as refusal:
            if refusal.code != "job_complete" or not self._closes_what_is_left(df, batch_id):
                raise
            return
        latest = opened.kept.latest_event_time
        latest = HIGHEST if latest is None else min(latest, HIGHEST)
        late_disposition: LateDisposition = "dropped" if self.late_function is None else "diverted"
        judgement = Judgement(opened.kept.pinned_watermark, latest, self.null_goes, self.future_goes, late_disposition)
        if isinstance(self.function, Windowing):
            judgement = replace(judgement, frame=self.function.frame, lateness=self.function.lateness)
        if self.persist:
            df = df.persist()
        try:
            fold = self._fold(df, judgement, opened, self._measuring())
            fold.check_size()
            taken = self._hand_out(df, judgement, fold, opened.batch)
        finally:
            if self.persist:
                df.unpersist()
        answer = self.delivery.commit(opened, fold)
        if isinstance(self.function, Windowing) and taken is not None:
            self._calling = True  # the windows that close are given out
            self.function.close(taken, None if answer is None else answer["coalesced_watermark"])
            self._calling = False
        self._tell_of(opened.batch, fold, answer, time.monotonic() - began)

    def _closes_what_is_left(self, df: DataFrame, batch_id: int) -> bool:
        """After the end of input there is nothing to tell of a batch without rows; windows are still to come out."""
        if not isinstance(self.function, Windowing) or not df.isEmpty():
            return False
        last = self.delivery.coordinator.coalesced_watermark()
        self.function.close(self.function.pass_by(df.sparkSession, self.delivery.untold(batch_id, last)), last, True)
        return True

    def _measuring(self) -> Measuring | None:
        """How delays are to be measured; None: not at all."""
        config = self.delivery.config
        order = self.delays or ("batch" if needed_by(config) else "none")
        if order == "none":
            return None
        throttle = config.get("throttle") or {}
        frame = None
        if throttle.get("type") == "frame":
            slide = throttle.get("slide_ms") or throttle["size_ms"]
            frame = Frame(throttle["size_ms"], slide, throttle.get("offset_ms", 0))
        return Measuring(order, self.delivery.max_event_times(), frame)

    def _fold(self, df: DataFrame, judgement: Judgement, opened: Opened, measuring: Measuring | None) -> Fold:
        """Folds the batch and stages it; all of it is at the coordinator after this, unless the query goes on alone."""
        found = None
        if self._plain and measuring is None:
            found = self._folded(df, judgement, opened, plain=True)
        found = found or self._folded(df, judgement, opened, plain=False, measuring=measuring)
        assert found is not None, "the full fold judges every row"
        fold, posted = found
        self._plain = not (fold.count("late") or fold.count("updated") or fold.count("future"))
        # For a few substreams one task is enough, and each costs a Python worker some time.
        self._tasks = min(self.report_tasks, 1 + len(fold.substream) // SUBSTREAMS_PER_CALL)
        if not posted:
            self.delivery.report(opened, fold)
        return fold

    def _folded(
        self, df: DataFrame, judgement: Judgement, opened: Opened, plain: bool, measuring: Measuring | None = None
    ) -> tuple[Fold, bool] | None:
        """The fold, and whether the executors have reported it; None where the plain one has not told everything."""
        tasks = self._tasks or self.report_tasks
        if self.mode == "executor" and opened.heard:
            reporter = self._reporter(opened)
            try:
                found = on_executors(df, self.columns, judgement, tasks, reporter, plain, measuring)
            except PythonException as error:
                if "ModuleNotFoundError" in str(error):
                    raise InvalidUsage(
                        "The Python of Spark's workers lacks a package that reporting needs. Set PYSPARK_PYTHON (or "
                        "spark.pyspark.python) to one that has tidegate-spark, or choose reporting('driver')."
                    ) from error
                raise
            if found is None:
                return None
            fold, posted = found
            self.delivery.coordinator.waited_s += posted.waited_s
            return fold, posted.complete
        folded = on_driver(df, self.columns, judgement, tasks, plain, measuring)
        return None if folded is None else (folded, False)

    def _reporter(self, opened: Opened) -> Reporter:
        coordinator, delivery = self.delivery.coordinator, self.delivery
        return Reporter(
            coordinator.url,
            coordinator.report_path(),
            coordinator.headers,
            batch_of(delivery.query, delivery.run(), opened.batch_id),
            coordinator.watermark_token or "",
            Patience(MOMENT_S),
        )

    def _hand_out(self, df: DataFrame, judgement: Judgement, fold: Fold, batch: Batch) -> Taken | None:
        """Gives rows to the user's functions, or to the windows; to the late one only where there are any."""
        set_aside = {name: count for name in judgement.classes_aside if (count := fold.count(name))}
        # Most batches have no such rows, and a filter for nothing costs a pass over an expression all the same.
        aside = judgement.aside(self.columns.time(df)) if set_aside else None
        taken = None
        if isinstance(self.function, Windowing):
            taken = self.function.take_in(df, judgement, fold, batch)
        else:
            self._call(self.function, df if aside is None else df.filter(~aside), batch)
        if aside is not None and self.late_function is not None:
            self._call(self.late_function, df.filter(aside), batch)
        elif set_aside:
            counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in set_aside.items())
            self.delivery.log.warning(
                "dropped %s rows, of %s; late_output() keeps them.",
                counts,
                _some(name for row_class in set_aside for name in fold.named(row_class)),
                extra={"batch": int(batch)},
            )
        return taken

    def _call(self, function: BatchFunction, df: DataFrame, batch: Batch) -> None:
        """Call a function of the user; its errors keep their traceback."""
        self._calling = True
        function(df, batch)
        self._calling = False

    def _tell_of(self, batch: Batch, fold: Fold, answer: dict[str, Any] | None, seconds: float) -> None:
        committed = Committed(
            batch,
            fold.count("on_time"),
            fold.count("updated"),
            fold.count("late"),
            fold.count("null_event_time"),
            fold.count("future"),
            watermark=batch.job_watermark if answer is None else answer["watermark"],
            now_ms=None if answer is None else answer["now_ms"],
            held_by=None if answer is None else Holder.of(answer),
            seconds=seconds,
            told=answer is not None,
            of_timestamps=self.of_timestamps,
        )
        log, carried = self.delivery.log, {"batch": int(batch), **committed.metrics()}
        if committed.future:
            log.warning(
                "event times too far ahead of the clock, in rows of %s: they move no watermark.",
                _some(fold.named("future")),
                extra=carried,
            )
        log.info("%s", committed, extra=carried)
        try:
            if self.progress:
                print(f"{batch.query} {int(batch)}: {committed}", flush=True)
            if self.on_commit is not None:
                self.on_commit(committed)
        except Exception:
            # The batch is committed, and whoever is told of that has no say in it.
            log.exception("the function of on_commit failed", extra=carried)


def _some(names: Any) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - NAMED
    return ", ".join(distinct[:NAMED]) + (f" and {more} more" if more > 0 else "")
