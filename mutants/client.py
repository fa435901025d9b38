"""Defects of the PySpark client."""

from mutants.mutant import Guarantee, Mutant

CLIENT = "spark_client/src/tidegate_spark"
WINDOWS = "tests/guarantees/test_closing.py"

MUTANTS = (
    Mutant(
        "client-late-row-on-time",
        "The full fold counts a late row as on time, and the hook delivers it.",
        Guarantee.REPLAY_EXACT,
        f"{CLIENT}/hook/classify.py",
        'return f"coalesce({time} < {late_below}, false)"',
        'return "false"',
        ("tests/guarantees/test_rows.py::test_every_row_is_on_time_late_or_without_an_event_time",),
    ),
    Mutant(
        "client-late-batch-on-time",
        "The plain fold counts the late rows of a batch as on time.",
        Guarantee.REPLAY_EXACT,
        f"{CLIENT}/hook/classify.py",
        "return min_event_time >= max(LOWEST, self.on_time_from) and",
        "return min_event_time >= LOWEST and",
        ("tests/client/test_classify.py",),
    ),
    Mutant(
        "client-window-closed-too-late",
        "A watermark does not close the window that ends exactly at it.",
        Guarantee.LIVE,
        f"{CLIENT}/frame.py",
        "return watermark - (watermark - self.offset - self.size) % self.slide",
        "return watermark - 1 - (watermark - 1 - self.offset - self.size) % self.slide",
        ("tests/client/test_classify.py",),
    ),
    Mutant(
        "client-window-emitted-twice",
        "A closed window that did not change is emitted again.",
        Guarantee.IDEMPOTENT,
        f"{CLIENT}/windows/windowing.py",
        " AND ({closes} OR {touched})",
        "",
        (f"{WINDOWS}::test_late_rows_within_the_allowed_lateness_update_their_window",),
    ),
    Mutant(
        "client-backlog-out-of-order",
        "Batches of the backlog are reported in reverse order.",
        Guarantee.IDEMPOTENT,
        f"{CLIENT}/protocol/backlog.py",
        "self._flush_batch(min(pending), policy)",
        "self._flush_batch(max(pending), policy)",
        ("tests/client/test_backlog.py",),
    ),
    Mutant(
        "client-backlog-lost",
        "A batch leaves the backlog before the coordinator has acknowledged it.",
        Guarantee.COMMITTED,
        f"{CLIENT}/protocol/backlog.py",
        "            yield from self._report_batch(batch, since, policy)\n",
        "            yield from self._remove(batch_id)\n"
        "            yield from self._report_batch(batch, since, policy)\n",
        ("tests/client/test_backlog.py",),
    ),
    Mutant(
        "client-pin-forgotten",
        "The client does not read the pinned watermark that it stored beside the checkpoint.",
        Guarantee.REPLAY_EXACT,
        f"{CLIENT}/protocol/pinned_watermarks.py",
        "return None if document is None else StoredPinnedWatermark(**document)",
        "return None",
        ("tests/client/test_pinned_watermarks.py",),
    ),
)
