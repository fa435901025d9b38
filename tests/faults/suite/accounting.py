"""The check of row counts: each committed batch counts once, unless a loss took it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.suite.checks import Losses, Violation
from tests.faults.suite.history import Call

CLASSES = ("on_time", "updated", "late", "null_event_time", "future")


def check_rows(calls: Sequence[Call], losses: Losses, counted: dict[str, int], at: float) -> Iterator[Violation]:
    """Check the row counts of a job, read at a time after all calls have ended.

    The counts lie between those of the batches that the store must have, and those of all batches.
    """
    commits: dict[tuple[str | None, int | None], list[Call]] = {}
    for call in sorted((call for call in calls if call.kind == "commit"), key=lambda call: call.sent):
        if call.body.get("rows") is not None:
            commits.setdefault((call.query, call.batch), []).append(call)
    for row_class in CLASSES:
        least = most = 0
        for attempts in commits.values():
            rows = [sum(call.body["rows"][row_class]) for call in attempts]
            if any(count != rows[0] for count in rows):
                yield Violation("replay-exact", f"the replays of a batch count other {row_class} rows", attempts)
            done = next((call for call in attempts if call.succeeded), None)
            most += rows[0]
            # A batch counts when its first attempt takes effect, which a later loss may undo.
            least += rows[0] if done is not None and not may_be_lost(attempts[0], done, losses, at) else 0
        if not least <= counted[row_class] <= most:
            text = f"{counted[row_class]} {row_class} rows are counted: expected {least} to {most}"
            yield Violation("idempotent", text, [attempts[-1] for attempts in list(commits.values())[-3:]])


def may_be_lost(first: Call, done: Call, losses: Losses, at: float) -> bool:
    """Return whether the store may lack the effect of a commit, with its first attempt and the one that succeeded."""
    taken = [loss for loss in losses.losses if loss.start < at and first.sent < loss.end]
    return losses.may_lack(done, at) or any(done.received > loss.start - loss.window_s for loss in taken)


def check_files(checkpoint: Path, query: str, calls: Sequence[Call]) -> Iterator[Violation]:
    """Check that the stored pinned watermarks equal those by which the commits of the history were classified."""
    begun: dict[int | None, Call] = {}
    committed = {(call.batch, call.run) for call in calls if call.kind == "commit" and call.query == query}
    for call in calls:
        if call.kind == "begin" and call.query == query and call.succeeded and (call.batch, call.run) in committed:
            begun[call.batch] = call
    for path in (checkpoint / "tidegate" / "pinned_watermarks").glob("*.json"):
        batch, document = int(path.stem), json.loads(path.read_text())
        stored = document["pinned_watermark"]
        if batch not in begun:
            continue
        pinned = begun[batch].answer["pinned_watermark"]
        # A batch that continued without the coordinator has the pinned watermark of the batch before it.
        if (pinned < stored) if document["assumed"] else (pinned != stored):
            yield Violation("replay-exact", f"the file of batch {batch} has {stored}", (begun[batch],))
