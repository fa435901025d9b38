"""Pins beside the checkpoint: what a replay is judged by when everything else is gone."""

from pathlib import Path

import pytest

from tidegate_spark.checkpoint import Checkpoint, file_system
from tidegate_spark.errors import InvalidUsage
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


def test_the_query_id_is_the_one_of_the_checkpoint(tmp_path: Path) -> None:
    """It names the checkpoint, and so survives restarts."""
    (tmp_path / "metadata").write_text('{"id":"39a82bda-d3a8-4d2f-85b9-8fb9967c5951"}')
    assert Checkpoint(str(tmp_path)).query_id == "39a82bda-d3a8-4d2f-85b9-8fb9967c5951"


@pytest.mark.parametrize("path", ["/data/x", "file:/data/x", "file:///data/x"])
def test_local_paths_in_all_spellings_of_hadoop(path: str) -> None:
    """Spark takes all of these for the same directory."""
    assert file_system(path)[1] == "/data/x"


def test_a_file_system_that_cannot_be_used_is_said_to_be() -> None:
    """Before the query starts to work, and with the way out."""
    with pytest.raises(InvalidUsage, match="s3a://"):
        file_system("ftp://host/x")
