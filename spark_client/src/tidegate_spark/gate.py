"""The way in: a connection to one job of a coordinator."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from tidegate_spark.coordinator import Coordinator
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.fold import Columns
from tidegate_spark.ids import checked_id
from tidegate_spark.outage import Patience
from tidegate_spark.rules import Rules
from tidegate_spark.stream import Stream


class Gate:
    """One job. Queries are started from :meth:`stream`; the rest is for the program that owns the job."""

    def __init__(self, coordinator: Coordinator, rules: Rules | None) -> None:
        self.coordinator, self.rules = coordinator, rules

    def stream(self, df: DataFrame, *, event_time: str, substream: str) -> Stream:
        """Coordinates a streaming DataFrame by two of its columns.

        :param event_time: a timestamp, a timestamp_ntz (read as UTC), or a long (epoch milliseconds).
        :param substream: a part of the input whose events are roughly in order: a Kafka partition, an airport.
        :raises InvalidUsage: for columns that are not there, or of a type that cannot be used.
        """
        columns = Columns(event_time, substream)
        columns.check(df)
        return Stream(self, df, columns)

    def ensure_job(self) -> None:
        """Creates the job from the rules given to :func:`connect`, if it is not there; changes nothing otherwise."""
        self.coordinator.ensure_job(self.rules)

    def change_rules(self, rules: Rules) -> None:
        """Puts other rules in force at once. No watermark goes back by it."""
        self.coordinator.change_job(rules)
        self.rules = rules

    def declare(self, query: str, names: Sequence[str]) -> None:
        """Makes substreams of a query known, so that they hold the watermark back before their first row."""
        self.coordinator.declare(query, names)

    def done(self, query: str, names: Sequence[str], reason: str = "") -> None:
        """Substreams of a query have ended; they never hold the watermark again."""
        self.coordinator.done(query, names, reason)

    def complete(self, reason: str = "") -> int | None:
        """End of input: returns the last watermark, above everything that was seen."""
        watermark: int | None = self.coordinator.complete(reason)["watermark"]
        return watermark

    def status(self) -> dict[str, Any]:
        """The job as the coordinator sees it."""
        return self.coordinator.status()

    def substreams(self) -> list[dict[str, Any]]:
        """The table of substreams."""
        return self.coordinator.substreams()


def connect(
    url: str | None = None,
    *,
    job: str,
    rules: Rules | None = None,
    key: str | None = None,
    on_outage: timedelta = timedelta(minutes=10),
) -> Gate:
    """A gate to ``job``. Nothing is sent yet.

    :param url: of the coordinator; by default the environment's ``TIDEGATE_URL``.
    :param rules: to create the job from, where it is not there (:func:`limiting_lag`); None: it must be there.
    :param key: sent as a bearer key; by default the environment's ``TIDEGATE_TOKEN``.
    :param on_outage: how long a batch waits for a coordinator that does not answer before its query fails.
    :raises InvalidUsage: for arguments that cannot work.
    """
    url = url or os.environ.get("TIDEGATE_URL")
    if not url:
        raise InvalidUsage("Give the coordinator's address: connect('http://host:8000', ...), or set TIDEGATE_URL.")
    patience = Patience(on_outage.total_seconds())
    return Gate(Coordinator(url, checked_id("job", job), key or os.environ.get("TIDEGATE_TOKEN"), patience), rules)
