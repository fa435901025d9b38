"""Defects of the PySpark client."""

from mutants.mutant import Guarantee, Mutant

CLIENT = "spark_client/src/tidegate_spark"
PROTOCOL = "tests/client/test_batch_protocol.py"
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
        "client-declaration-not-repeated",
        "The client does not declare its substreams again after the store has lost the declaration.",
        Guarantee.SAFE,
        f"{CLIENT}/protocol/registration.py",
        "if before is not None and previous is not None and before <= previous and not lost:",
        "if True:",
        (f"{PROTOCOL}::test_a_lost_declaration_is_repeated",),
    ),
    Mutant(
        "client-evicted-declared-again",
        "The client declares its substreams again with each begin, so that evicted substreams return.",
        Guarantee.SAFE,
        f"{CLIENT}/protocol/registration.py",
        "if before is not None and previous is not None and before <= previous and not lost:",
        "if False:",
        (f"{PROTOCOL}::test_an_evicted_substream_does_not_return_with_a_repeated_begin",),
    ),
    Mutant(
        "client-lost-commit-hidden",
        "The client does not notice that the coordinator has lost its last batch.",
        Guarantee.SAFE,
        f"{CLIENT}/protocol/progress.py",
        "return previous < self.batch_id or (previous == self.batch_id and was_open)",
        "return previous == self.batch_id and was_open",
        (f"{PROTOCOL}::test_a_lost_commit_is_recognized_after_a_repeated_begin",),
    ),
    Mutant(
        "client-overtaken-batch-sent-again",
        "A run sends a lost batch again that another run has finished.",
        Guarantee.REPLAY_EXACT,
        f"{CLIENT}/protocol/batches.py",
        "if (yield HasFinished(batch_id)):",
        "if (yield HasFinished(batch_id)) and False:",
        (f"{PROTOCOL}::test_a_run_that_another_run_has_overtaken_sends_nothing_again",),
    ),
    Mutant(
        "client-overtaken-backlog-refused",
        "A batch of the backlog that another run has overtaken stops all later runs.",
        Guarantee.LIVE,
        f"{CLIENT}/protocol/batches.py",
        "if refusal.code not in SUPERSEDED_BATCH:",
        "if True:",
        (f"{PROTOCOL}::test_a_backlog_batch_that_another_run_has_overtaken_is_merged",),
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
