"""Pins beside the checkpoint: what a replay is judged by when everything else is gone."""

from pathlib import Path

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.pinned_watermarks import PinnedWatermarks, StoredPinnedWatermark


def test_a_pin_is_found_again_and_none_differs_from_no_watermark(tmp_path: Path) -> None:
    """A batch pinned before there was a watermark must not be pinned anew."""
    pinned_watermarks = PinnedWatermarks(Checkpoint(str(tmp_path)))
    assert pinned_watermarks.read(0) is None
    pinned_watermarks.write(0, StoredPinnedWatermark(None, "1..x"))
    pinned_watermarks.write(1, StoredPinnedWatermark(-5, "1.-5.y"))
    again = PinnedWatermarks(Checkpoint(f"file://{tmp_path}"))
    assert again.read(0) == StoredPinnedWatermark(None, "1..x")
    assert again.read(1) == StoredPinnedWatermark(-5, "1.-5.y")


def test_old_pins_go(tmp_path: Path) -> None:
    """A query that runs for years must not fill a directory."""
    pinned_watermarks = PinnedWatermarks(Checkpoint(str(tmp_path)), kept=3)
    for batch_id in range(10):
        pinned_watermarks.write(batch_id, StoredPinnedWatermark(batch_id, "t"))
    assert sorted(path.name for path in (tmp_path / "tidegate" / "pinned_watermarks").iterdir()) == [
        "7.json",
        "8.json",
        "9.json",
    ]
