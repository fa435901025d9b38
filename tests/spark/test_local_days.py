"""Windows that are days of a time zone, in Spark."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.streams import to_the_end
from tidegate_spark import InvalidUsage, Job, start, windows
from tidegate_spark.days import DAY_MS
from tidegate_spark.frame import Frame
from tidegate_spark.spark_session import setting
from tidegate_spark.testing import FileBatches

ZONE = ZoneInfo("America/New_York")
DAY = timedelta(days=1)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Pacific/Apia"])
@pytest.mark.parametrize("session_zone", ["UTC", "America/New_York"])
def test_spark_and_python_agree_about_days(spark: SparkSession, zone: str, session_zone: str) -> None:
    """Spark assigns the rows to days, and Python closes them, in every time zone of the session."""
    chosen = random.Random(0)  # noqa: S311 - the same times each time
    times = [chosen.randrange(-70 * 365 * DAY_MS, 130 * 365 * DAY_MS) for _ in range(300)]
    for offset in (0, DAY_MS // 4):
        frame = Frame(DAY_MS, DAY_MS, offset, zone)
        with setting(spark, "spark.sql.session.timeZone", session_zone):
            found = (
                spark.createDataFrame([(at,) for at in times], "t long")
                .selectExpr("t", f"{frame.starts('t')} AS s")
                .selectExpr("t", "s", f"{frame.end('s')} AS e")
                .collect()
            )
        for at, begin, end in found:
            assert (begin, end) == (frame.cut(at), frame.cut_at_the_end(at + 1)), at


def test_a_day_of_23_hours_is_one_window(spark: SparkSession, job: Job, tmp_path: Path, checkpoint: str) -> None:
    """On 10 March 2013, the clocks went forward in New York."""
    source = FileBatches(tmp_path / "input", "k string, day timestamp")
    for text in ("2013-03-10T00:00", "2013-03-10T23:59", "2013-03-11T00:00", "2013-03-12T12:00"):
        moment = datetime.fromisoformat(text).replace(tzinfo=ZONE).astimezone(UTC)
        source.add({"k": "a", "day": moment.isoformat()})
    found: dict[datetime, tuple[timedelta, int]] = {}

    def write(df: DataFrame, batch_id: int) -> None:
        for row in df.select(F.unix_millis("window.start"), F.unix_millis("window.end"), "rows").collect():
            begin, end, rows = row
            begins = datetime.fromtimestamp(begin / 1000, ZONE).replace(tzinfo=None)
            found[begins] = timedelta(milliseconds=end - begin), rows

    stream = job.stream(source.stream(spark), event_time="day", substream="k")
    daily = stream.windows(DAY, time_zone=ZONE.key).agg(rows=windows.count()).foreach_batch(write)
    to_the_end(daily, checkpoint)
    assert found == {
        datetime(2013, 3, 10): (timedelta(hours=23), 2),
        datetime(2013, 3, 11): (DAY, 1),
    }


def test_other_time_zone_data_in_python_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, windows would close an hour before or after their end."""
    frame = Frame(DAY_MS, DAY_MS, 0, "Europe/Berlin")
    start.check_days(spark, frame)
    right = Frame.cut

    def wrong(self: Any, watermark: int) -> int:
        return right(self, watermark) - (watermark > 40 * 365 * DAY_MS) * 3_600_000

    monkeypatch.setattr(Frame, "cut", wrong)
    with pytest.raises(InvalidUsage, match="Python and Java disagree about the day of 2009-"):
        start.check_days(spark, frame)
