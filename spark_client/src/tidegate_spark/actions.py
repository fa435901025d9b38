"""The methods of a job that change it."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from tidegate_spark.arguments import check_list, names_of, time_number
from tidegate_spark.config import JobConfig, check_config, check_id, milliseconds
from tidegate_spark.errors import JobDeleted
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy
from tidegate_spark.reads import JobReads
from tidegate_spark.substreams import Values


class JobActions(JobReads):
    """The methods of a job that change it. The history records each ``reason`` with the name of the key."""

    def ensure_job(self) -> None:
        """Create the job with the configuration passed to :func:`connect`, unless the job exists.

        Role of the key: ``report``, ``operate`` or ``admin``.
        """
        self.connection.run(self.connection.calls.ensure_job(self.connection.config))

    def configure(self, config: JobConfig) -> None:
        """Replace the job's configuration at once. No watermark goes back.

        If the coordinator loses the job, queries started from this object create the job again with ``config``.

        Role of the key: ``operate`` or ``admin``.
        """
        check_config("config", config)
        self.connection.run(self.connection.calls.call("PUT", "", config, headers={"If-Match": "*"}))
        self.connection.config = config

    def declare(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Declare substreams of a query, so that they hold the watermark before their first row.

        Role of the key: ``report``, ``operate`` or ``admin``.

        Args:
            query: Name of the query. Empty for reports without batches.
            substreams: For each substream, the value of its column, or a tuple of the values of its columns.
            reason: Text that the coordinator records with the action.
        """
        self.connection.run(self.connection.calls.declare(query, names_of("declare", substreams), reason))

    def idle(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Exclude substreams of a query from the minimum until their next event.

        The arguments are those of :meth:`declare`.

        Role of the key: ``report``, ``operate`` or ``admin``.
        """
        self.connection.run(self.connection.calls.idle(query, names_of("idle", substreams), reason))

    def done(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Mark substreams of a query as done: they never hold the watermark again.

        The arguments are those of :meth:`declare`.

        Role of the key: ``report``, ``operate`` or ``admin``.
        """
        self._act("/substreams:done", query=query, substreams=names_of("done", substreams), reason=reason)

    def evict(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Remove substreams of a query. They return as new substreams if they report.

        The arguments are those of :meth:`declare`.

        Role of the key: ``operate`` or ``admin``.
        """
        self._act("/substreams:evict", query=query, substreams=names_of("evict", substreams), reason=reason)

    def restore(
        self,
        query: str,
        substreams: Sequence[Values],
        watermarks: Sequence[datetime | int],
        reason: str = "",
        force: bool = False,
    ) -> None:
        """Set the watermarks of substreams to values from another system.

        Role of the key: ``operate`` or ``admin``.

        Args:
            query: Name of the query. Empty for reports without batches.
            substreams: As for :meth:`declare`. If the job lacks one of them, nothing changes.
            watermarks: Watermark of each substream: a datetime with a time zone, or a number in the unit of the event
                times.
            reason: Text that the coordinator records with the action.
            force: Whether to accept numbers that look like seconds or microseconds in place of milliseconds.
        """
        check_list("restore", "watermarks", watermarks)
        numbers = [time_number("watermarks", watermark) for watermark in watermarks]
        names = names_of("restore", substreams)
        self._act(":restore", query=query, substreams=names, watermarks=numbers, reason=reason, force=force)

    def hand_over(self, query: str, successor: str, reason: str = "") -> None:
        """Retire a query whose substreams another query continues.

        Call this method when you rename a query or start it on a new checkpoint. For a new checkpoint, ``successor`` is
        the query's own name. An open batch is abandoned: its rows are missing unless the successor reads them again.

        Role of the key: ``operate`` or ``admin``.
        """
        path = f"/queries/{check_id('query', query)}:hand_over"
        self._act(path, successor=check_id("successor", successor), reason=reason)

    def retire(self, query: str, reason: str = "") -> None:
        """Retire a query: its substreams and its open batch no longer hold the watermark.

        Role of the key: ``operate`` or ``admin``.
        """
        self._act(f"/queries/{check_id('query', query)}:retire", reason=reason)

    def hold(
        self,
        at_most: datetime | int,
        reason: str,
        hold: str | None = None,
        duration: timedelta | None = None,
        force: bool = False,
    ) -> str:
        """Keep the watermark at or below a value, and return the name of the hold.

        Role of the key: ``operate`` or ``admin``.

        Args:
            at_most: Highest watermark: a datetime with a time zone, or a number in the unit of the event times. If the
                watermark is already higher, it does not move.
            reason: Reason for the hold, which the status of the job shows.
            hold: Name of the hold; default: a random name.
            duration: Duration of the hold; default: until :meth:`release`.
            force: Whether to accept a number that looks like seconds or microseconds in place of milliseconds.
        """
        # A name from the coordinator would differ in each attempt, so a repeated call would add a second hold.
        name = secrets.token_hex(4) if hold is None else check_id("hold", hold)
        duration_ms = None if duration is None else milliseconds("duration", duration, 1)
        number = time_number("at_most", at_most)
        self._act("/holds", at_most=number, reason=reason, hold=name, duration_ms=duration_ms, force=force)
        return name

    def release(self, hold: str, reason: str = "") -> None:
        """Release a hold before it expires.

        Role of the key: ``operate`` or ``admin``.
        """
        path = f"/holds/{check_id('hold', hold)}?{urlencode({'reason': reason})}"
        self.connection.run(self.connection.calls.call("DELETE", path))

    def forget_consumer(self, consumer: str, reason: str = "") -> None:
        """Remove a consumer of the frames that no process uses. Under its name, all frames are delivered again.

        Role of the key: ``report``, ``operate`` or ``admin``.
        """
        path = f"/consumers/{check_id('consumer', consumer)}?{urlencode({'reason': reason})}"
        self.connection.run(self.connection.calls.call("DELETE", path))

    def reopen(self, reason: str = "") -> None:
        """Reopen a completed job, so that it accepts reports. The watermark does not move back.

        Role of the key: ``operate`` or ``admin``.
        """
        self._act(":reopen", reason=reason)

    def reset(self, reason: str = "") -> None:
        """Delete all state of the job, including its watermark, and keep its configuration.

        The client sends the call once, because a second call would reset the job again.

        Role of the key: ``admin``.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer at once. The job may have been reset.
        """
        self._act(":reset", policy=ONE_ATTEMPT, reason=reason)

    def delete(self) -> None:
        """Delete the job with its history. The next start of a query creates the job again.

        Role of the key: ``admin``.
        """
        with suppress(JobDeleted):  # by an earlier attempt, whose answer was lost
            self.connection.run(self.connection.calls.call("DELETE", ""))

    def _act(self, path: str, policy: RetryPolicy | None = None, force: bool = False, **body: Any) -> dict[str, Any]:
        if force:  # else left out, because a coordinator of an older version refuses it
            body["force"] = True
        return self.connection.run(self.connection.calls.call("POST", path, body, policy))
