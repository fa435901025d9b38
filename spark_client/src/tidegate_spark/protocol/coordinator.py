"""The calls for one job: those that queries make, and :meth:`Coordinator.call` for all others."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tidegate_spark.clock import Clock
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import InvalidUsage, JobMissing, Refused
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.effects import Procedure, Send
from tidegate_spark.protocol.evidence import ProcessingTime
from tidegate_spark.protocol.reports import in_calls
from tidegate_spark.protocol.retry import RetryPolicy

log = logging.getLogger("tidegate")

Body = Mapping[str, Any]
Answer = dict[str, Any]


class Coordinator:
    """The calls of one run to one job, and the state that the run keeps from the answers.

    Attributes:
        watermark_token: The latest watermark token. Every report, begin, commit and heartbeat carries the token, which
            restores a coordinator that has lost state.
        waited_s: Time that the run has waited for the coordinator, in seconds. The query reads no input while it waits,
            so this time does not count towards ``idle_timeout``.
    """

    def __init__(self, url: str, job: str, policy: RetryPolicy, clock: Clock) -> None:
        self.url, self.job, self.policy, self.clock = url, job, policy, clock
        self.watermark_token: str | None = None
        self.waited_s = 0.0
        self._token_proves: tuple[str | None, int | None] = (None, None)
        # The coordinator's time in its last answer, and the monotonic time at which the answer arrived.
        self._answered: tuple[int, float] = (0, clock.monotonic())

    def coordinator_ms(self, age_s: float) -> int:
        """Return the coordinator's time ``age_s`` seconds ago (epoch milliseconds), or an earlier time."""
        answered_ms, arrived = self._answered  # the latency of the answer makes the result earlier, never later
        return max(0, answered_ms + int(1000 * (self.clock.monotonic() - age_s - arrived)))

    def now(self) -> ProcessingTime:
        """Return the processing time."""
        return ProcessingTime(self.clock.time(), self.waited_s)

    # -- the job --------------------------------------------------------------------------------------------------

    def ensure_job(self, config: JobConfig | None, policy: RetryPolicy | None = None) -> Procedure[Answer]:
        """Create the job if it does not exist, and return its status. An existing job keeps its configuration.

        Raises:
            JobMissing: If the job does not exist, and ``config`` is None.
        """
        if config is not None:
            try:
                created = yield from self.call("PUT", "", config, policy, headers={"If-None-Match": "*"})
                log.info("Created job %s.", self.job)
                return created
            except Refused as refusal:
                if refusal.code != "job_exists":
                    raise
        status = yield from self.status(policy)
        kept, ours = status["config"], config or {}
        differing = [f"{name}: {kept.get(name)}, here {ours[name]}" for name in ours if kept.get(name) != ours[name]]
        if differing:
            log.warning(
                "Job %s keeps its configuration, which differs from this program's (%s). To replace it, call "
                "job.configure(config).",
                self.job,
                "; ".join(differing),
            )
        return status

    def status(self, policy: RetryPolicy | None = None) -> Procedure[Answer]:
        """Return the status of the job."""
        return self.call("GET", "", policy=policy)

    def declare(
        self,
        query: str,
        names: Sequence[str],
        reason: str,
        max_event_times: Mapping[str, int] | None = None,
        policy: RetryPolicy | None = None,
    ) -> Procedure[None]:
        """Declare substreams, with the ``max_event_times`` of substreams that the job may have lost."""
        max_event_times = max_event_times or {}
        # The watermark may move between two calls, so the substreams that hold it are declared first.
        ordered = sorted(names, key=lambda name: (name in max_event_times, max_event_times.get(name, 0)))
        columns: dict[str, list[Any]] = {"substreams": ordered}
        if max_event_times:
            columns["max_event_times"] = [max_event_times.get(name) for name in ordered]
        for part in in_calls(columns):
            yield from self.call("POST", ":declare", {"query": query, "reason": reason, **part}, policy)

    def idle(self, query: str, names: Sequence[str], reason: str) -> Procedure[None]:
        """Mark substreams of a query as idle until they report again."""
        for part in in_calls({"substreams": list(names)}):
            yield from self.call("POST", "/substreams:idle", {"query": query, "reason": reason, **part})

    def coalesced_watermark(self) -> Procedure[int | None]:
        """Return the coalesced watermark."""
        answer = yield from self.call("GET", "/watermark")
        watermark: int | None = answer["coalesced_watermark"]
        return watermark

    def queries(self, policy: RetryPolicy | None = None) -> Procedure[list[Answer]]:
        """Return the queries of the job."""
        answer = yield from self.call("GET", "/queries", policy=policy)
        rows: list[Answer] = answer["queries"]
        return rows

    def substreams(self) -> Procedure[list[Answer]]:
        """Return all substreams of the job."""
        rows: list[Answer] = []
        after: str | None = ""
        while after is not None:
            page = yield from self.call("GET", f"/substreams?limit=1000&after={quote(after, safe='')}")
            rows += page["substreams"]
            after = page["next"]
        return rows

    # -- one call -------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: Body | Callable[[], Body] | None = None,
        policy: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Procedure[Answer]:
        """Make a call to ``path`` under ``/v1/jobs/{job}``. A callable ``body`` is called again for each attempt.

        Raises:
            JobMissing: If the job does not exist.
            Refused: If the coordinator refuses the call.
            CoordinatorUnavailable: If the coordinator does not answer in time.
        """

        def request(timeout_s: float) -> Send:
            content = body() if callable(body) else body
            return Send(method, f"/v1/jobs/{self.job}{path}", content, headers or {}, timeout_s)

        what = f"{method} {self.job}{path.partition('?')[0]}"
        try:
            answer = yield from retry.call(what, request, policy or self.policy, self.clock)
        except JobMissing as missing:
            raise missing.of(self.job) from None
        except Refused as refusal:
            if refusal.code == "no_such_path":
                raise InvalidUsage(
                    f"{self.url!r} is not the address of a coordinator: it must not end with a path of the API. Remove "
                    "the path, as in http://host:8000."
                ) from None
            raise
        if "now_ms" in answer:
            self._answered = answer["now_ms"], self.clock.monotonic()
        return answer

    def keep_token(self, answer: Answer) -> None:
        """Keep the watermark token of an answer, unless the last token proves a higher watermark of the same state.

        Pass only answers to calls that carried a token. Other answers may come from a coordinator that has lost state
        and is not yet restored. Answers may also arrive out of order.
        """
        epoch, watermark = answer["state_epoch"], answer["watermark"]
        known_epoch, known = self._token_proves
        if epoch != known_epoch or known is None or (watermark is not None and watermark >= known):
            self.watermark_token, self._token_proves = answer["watermark_token"], (epoch, watermark)
