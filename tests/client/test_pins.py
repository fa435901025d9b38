"""Pins beside the checkpoint: what a replay is judged by when everything else is gone."""

from pathlib import Path

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.pins import KeptPin, Pins


def test_a_pin_is_found_again_and_none_differs_from_no_watermark(tmp_path: Path) -> None:
    """A batch pinned before there was a watermark must not be pinned anew."""
    pins = Pins(Checkpoint(str(tmp_path)))
    assert pins.read(0) is None
    pins.write(0, KeptPin(None, "1..x"))
    pins.write(1, KeptPin(-5, "1.-5.y"))
    again = Pins(Checkpoint(f"file://{tmp_path}"))
    assert again.read(0) == KeptPin(None, "1..x")
    assert again.read(1) == KeptPin(-5, "1.-5.y")


def test_old_pins_go(tmp_path: Path) -> None:
    """A query that runs for years must not fill a directory."""
    pins = Pins(Checkpoint(str(tmp_path)), kept=3)
    for batch_id in range(10):
        pins.write(batch_id, KeptPin(batch_id, "t"))
    assert sorted(path.name for path in (tmp_path / "tidegate" / "pins").iterdir()) == ["7.json", "8.json", "9.json"]
