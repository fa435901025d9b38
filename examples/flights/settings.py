"""Which run of the demo: all from the environment, as ``DEMO_<NAME>``."""

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


class DemoError(Exception):
    """Why this run cannot be, in one line that says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The slice is the flights that *landed* in ``[start, start + days)``; ``idle_batches`` 0: nobody falls idle.

    ``coordinator``: the address of one that runs; None: one with an embedded Valkey is started. ``master``: which
    Spark, and ``driver_host``: under which name its executors reach this program. ``kafka``: the servers that the
    landings go by way of; None: they are files.
    """

    start: datetime
    days: int
    batch_hours: int
    lag_minutes: int
    idle_batches: int
    out: Path
    coordinator: str | None = None
    master: str = "local[2]"
    driver_host: str = "127.0.0.1"
    kafka: str | None = None

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=self.days)

    def document(self) -> dict[str, Any]:
        """What makes a run the same run."""
        return {name: str(value) for name, value in asdict(self).items() if name != "out"}


def load_settings() -> Settings:
    """:raises DemoError: for a setting that cannot be used."""
    start = os.environ.get("DEMO_START", "2013-01-01")
    try:
        first_day = datetime.strptime(start, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise DemoError(f"DEMO_START must be a date like 2013-01-01; it is {start!r}.") from None
    return Settings(
        start=first_day,
        days=_whole("DEMO_DAYS", 7, 1, 1000),
        batch_hours=_whole("DEMO_BATCH_HOURS", 1, 1, 24 * 365),
        lag_minutes=_whole("DEMO_LAG_MINUTES", 30, 0, 60 * 24 * 365),
        idle_batches=_whole("DEMO_IDLE_BATCHES", 6, 0, 1_000_000),
        out=Path(os.environ.get("DEMO_OUT", "out/demo")).absolute(),
        coordinator=os.environ.get("DEMO_COORDINATOR"),
        master=os.environ.get("DEMO_MASTER", "local[2]"),
        driver_host=os.environ.get("DEMO_DRIVER_HOST", "127.0.0.1"),
        kafka=os.environ.get("DEMO_KAFKA"),
    )


def _whole(name: str, default: int, lowest: int, highest: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or not lowest <= number <= highest:
        raise DemoError(f"{name} must be a whole number from {lowest} to {highest}; it is {text!r}.")
    return number
