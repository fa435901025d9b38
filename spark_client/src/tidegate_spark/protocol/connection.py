"""The connection of a program to one job of a coordinator."""

from collections.abc import Callable, Iterator, Mapping

from httpx_sse import ServerSentEvent

from tidegate_spark.clock import Clock
from tidegate_spark.config import JobConfig
from tidegate_spark.protocol.coordinator import Coordinator
from tidegate_spark.protocol.effects import Procedure, Result
from tidegate_spark.protocol.retry import OnOutage, run_call
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

    def events(self, path: str, headers: Mapping[str, str]) -> Iterator[ServerSentEvent]:
        """Yield the server-sent events of an answer as they arrive; see :meth:`HttpTransport.events`."""
        return self._transport.events(path, headers)
