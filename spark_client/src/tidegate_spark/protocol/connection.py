"""The connection of a program to one job of a coordinator."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from tidegate_spark.clock import Clock
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.protocol.coordinator import Coordinator
from tidegate_spark.protocol.effects import NoAnswer, Procedure, Result
from tidegate_spark.protocol.retry import RETRIED_STATUSES, OnOutage, run_call
from tidegate_spark.protocol.transport import HttpTransport


class JobConnection:
    """The connection to one job, shared by all queries of the program.

    Queries create the job from ``config``, which the program may replace while they run.
    """

    def __init__(
        self,
        url: str,
        job: str,
        key: str | None,
        config: JobConfig | None,
        on_outage: OnOutage,
        clock: Clock,
        new_transport: Callable[[str, dict[str, str]], HttpTransport] = HttpTransport,
    ) -> None:
        self.url, self.job, self.key = url, job, key
        self.config, self.on_outage, self.clock = config, on_outage, clock
        self._new_transport = new_transport
        self._transport = self.transport()
        self.calls = Coordinator(url, job, on_outage.policy, clock)

    @property
    def authorization(self) -> str | None:
        """Value of the ``Authorization`` header; None without a key."""
        return f"Bearer {self.key}" if self.key else None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        authorization = {"Authorization": self.authorization} if self.authorization else {}
        return {"Content-Type": "application/json", **authorization}

    @property
    def reader_options(self) -> dict[str, str]:
        """Options of a reader of the job's watermark. Spark redacts an option whose name has ``token``."""
        authorization = {"authorization_token": self.authorization} if self.authorization else {}
        return {"url": f"{self.url}/v1/jobs/{self.job}/watermark", **authorization}

    def transport(self) -> HttpTransport:
        """Return a transport with its own connections."""
        return self._new_transport(self.url, self.headers)

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure of :attr:`calls` outside of any query."""
        return run_call(procedure, self._transport.send, self.clock)

    def watch(self, kind: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the events of a job until the job is deleted. After a reconnection, yield the missed events.

        Args:
            kind: Kinds of records to yield. Empty: all kinds.

        Raises:
            JobMissing: If the job does not exist.
            Refused: If the coordinator refuses the call.
            CoordinatorUnavailable: If the coordinator does not answer in time.
        """
        path = f"/v1/jobs/{self.job}/watermark:watch?{urlencode({'kind': kind}, doseq=True)}"
        clock, policy = self.clock, self.on_outage.policy
        last_id, failed_at, attempts = "", clock.monotonic(), 0
        while True:
            reason = "the stream has ended"
            try:
                for event in self._transport.events(path, {"Last-Event-ID": last_id} if last_id else {}):
                    last_id, attempts = event.id or last_id, 0
                    if event.data:  # otherwise the event is a position, after records of other kinds
                        yield {"event": event.event, **event.json()}
                    if event.event == "deleted":
                        return
            except NoAnswer as error:
                reason = str(error)
            except JobMissing as missing:
                raise missing.of(self.job) from None
            except Refused as refusal:
                if refusal.status not in RETRIED_STATUSES:
                    raise
                reason = str(refusal)
            if not attempts:
                failed_at = clock.monotonic()
            attempts += 1
            left_s = policy.give_up_after_s - (clock.monotonic() - failed_at)
            if left_s <= 0 and attempts > 1:
                raise CoordinatorUnavailable(f"watch {self.job}: no answer from the coordinator ({reason}).", reason)
            clock.sleep(policy.pause_s(attempts, max(left_s, 0.0), 0.0))
