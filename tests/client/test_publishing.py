"""The publisher of watermarks in tables ends with its program, and not before it has written the last watermark."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading, time
from pathlib import Path
from tidegate_spark.hook.publishing import WatermarkPublisher
from tidegate_spark.logs import QueryLog

class SlowTable(WatermarkPublisher):
    def _publish(self, name, watermark):
        time.sleep(1)
        Path(name).write_text(str(watermark.watermark))
        return True

publisher = SlowTable(None, "flights", [sys.argv[1]], 3600, QueryLog("flights", "departures"))
publisher.offer(1, 0)
if sys.argv[2] == "listener":
    threading.Thread(target=publisher.close, daemon=True).start()
    publisher._is_closed.wait()
    time.sleep(0.1)
"""


def ends(path: Path, closed_by: str) -> str:
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), closed_by], check=True, timeout=60)
    return path.read_text()


def test_a_program_that_ends_publishes_its_last_watermark(tmp_path: Path) -> None:
    assert ends(tmp_path / "watermark", "the program") == "1"


def test_a_program_waits_for_a_watermark_that_a_listener_publishes(tmp_path: Path) -> None:
    """The listener closes the publisher on a daemon thread. The program used to end in the middle of it."""
    assert ends(tmp_path / "watermark", "listener") == "1"
