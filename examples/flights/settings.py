"""The settings of a run, from the environment variables ``DEMO_<NAME>``."""

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

LOCAL = "local"
"""The value of ``DEMO_KAFKA`` for a broker of the demo's own."""


KAFKA_JARS = Path(os.environ.get("DEMO_KAFKA_JARS", Path(__file__).parents[2] / ".venv" / "kafka"))
"""Folder with the jars of the broker (``broker``) and of Spark's connectors (``connector-<version of Spark>``)."""


class DemoError(Exception):
    """The demo cannot run. The message is one line and says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run. The README describes the variables.

    Attributes:
        start: First day of landings. The run replays the flights that landed in ``[start, start + days)``.
        days: Number of days of landings.
        batch_hours: Hours of landings per file.
        lag_minutes: Lag of the coordinated and the native query, in minutes.
        idle_batches: Number of batches without a landing after which a destination is idle; 0 sets no limit.
        out: Output directory.
        coordinator: Address of a running coordinator; None starts one with an embedded Valkey.
        public_url: Address of the coordinator for a browser. The demo only prints it. None: the same address.
        master: Address of the Spark master.
        driver_host: Host name by which executors reach the driver.
        kafka: Addresses of the Kafka servers; ``local`` starts a broker; None reads the landings from files.
    """

    start: datetime
    days: int
    batch_hours: int
    lag_minutes: int
    idle_batches: int
    out: Path
    coordinator: str | None = None
    public_url: str | None = None
    master: str = "local[2]"
    driver_host: str = "127.0.0.1"
    kafka: str | None = None

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=self.days)

    def document(self) -> dict[str, Any]:
        """Return the settings that must be equal for a run to be continued."""
        return {name: str(value) for name, value in asdict(self).items() if name not in ("out", "public_url")}


def load_settings() -> Settings:
    """Return the settings from the environment.

    Raises:
        DemoError: If a variable has an invalid value.
    """
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
        public_url=os.environ.get("DEMO_PUBLIC_URL"),
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
