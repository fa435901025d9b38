"""Pinned watermarks beside the checkpoint, by which replays classify rows."""

from pathlib import Path

from tests.support.drivers import on_files
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.pinned_watermarks import PinnedWatermarks, StoredPinnedWatermark


def test_a_pinned_watermark_is_found_again_and_none_differs_from_no_watermark(tmp_path: Path) -> None:
    """A stored pinned watermark of None differs from a missing one: a replay of the batch keeps it."""
    pinned_watermarks, files = PinnedWatermarks(), Checkpoint(str(tmp_path))
    assert on_files(files, pinned_watermarks.read(0)) is None
    on_files(files, pinned_watermarks.write(0, StoredPinnedWatermark(None, "1..x")))
    on_files(files, pinned_watermarks.write(1, StoredPinnedWatermark(-5, "1.-5.y")))
    again = Checkpoint(f"file://{tmp_path}")
    assert on_files(again, pinned_watermarks.read(0)) == StoredPinnedWatermark(None, "1..x")
    assert on_files(again, pinned_watermarks.read(1)) == StoredPinnedWatermark(-5, "1.-5.y")


def test_old_pinned_watermarks_are_removed(tmp_path: Path) -> None:
    pinned_watermarks = PinnedWatermarks(kept=3)
    for batch_id in range(10):
        on_files(Checkpoint(str(tmp_path)), pinned_watermarks.write(batch_id, StoredPinnedWatermark(batch_id, "t")))
    assert sorted(path.name for path in (tmp_path / "tidegate" / "pinned_watermarks").iterdir()) == [
        "7.json",
        "8.json",
        "9.json",
    ]
