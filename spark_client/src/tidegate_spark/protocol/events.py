"""The events of a job: a stream that connects again when its connection ends."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.effects import NoAnswer
from tidegate_spark.protocol.retry import RETRIED_STATUSES


def watch(connection: JobConnection, kind: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a job until the job is deleted. After a reconnection, yield the missed events.

    Args:
        connection: The connection to the job.
        kind: Kinds of records to yield. Empty: all kinds.

    Raises:
        JobMissing: If the job does not exist.
        Refused: If the coordinator refuses the call.
        CoordinatorUnavailable: If the coordinator does not answer in time.
    """
    path = f"/v1/jobs/{connection.job}/watermark:watch?{urlencode({'kind': kind}, doseq=True)}"
    clock, policy = connection.clock, connection.on_outage.policy
    last_id, failed_at, attempts = "", clock.monotonic(), 0
    while True:
        reason = "the stream has ended"
        try:
            for event in connection.events(path, {"Last-Event-ID": last_id} if last_id else {}):
                last_id, attempts = event.id or last_id, 0
                if event.data:  # otherwise the event is a position, after records of other kinds
                    yield {"event": event.event, **event.json()}
                if event.event == "deleted":
                    return
        except NoAnswer as error:
            reason = str(error)
        except JobMissing as missing:
            raise missing.of(connection.job) from None
        except Refused as refusal:
            if refusal.status not in RETRIED_STATUSES:
                raise
            reason = str(refusal)
        if not attempts:
            failed_at = clock.monotonic()
        attempts += 1
        left_s = policy.give_up_after_s - (clock.monotonic() - failed_at)
        if left_s <= 0 and attempts > 1:
            raise CoordinatorUnavailable(f"watch {connection.job}: no answer from the coordinator ({reason}).", reason)
        clock.sleep(policy.pause_s(attempts, max(left_s, 0.0), 0.0))
