"""The coordinator as the driver sees it: one method per call of the API, waiting where it is away."""

import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from tidegate_spark.clock import SYSTEM_CLOCK, Clock
from tidegate_spark.config import JobConfig, differing
from tidegate_spark.errors import InvalidUsage, JobMissing, Refused
from tidegate_spark.outage import NoAnswer, Patience, outage_since
from tidegate_spark.reporter import batch_of, in_calls

log = logging.getLogger("tidegate")

Body = Mapping[str, Any]

Run = Mapping[str, str]
"""Who speaks: ``query_id``, the checkpoint, and ``run_id``, this start of the query."""

CONNECT_S = 5.0


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A moment (Unix time, in seconds), and for how long the run had waited for the coordinator by then."""

    at_s: float
    waited_s: float

    def age_ms(self, now_s: float, waited_s: float) -> int:
        """Return its age at ``now_s`` (Unix time), less the time that the run has waited since: ``waited_s`` in all."""
        return max(0, int(1000 * (now_s - self.at_s - (waited_s - self.waited_s))))


class Coordinator:
    """Calls for one job. It remembers the last watermark token, and sends it along.

    ``heard`` is the coordinator's time in its last answer (milliseconds), and this machine's monotonic time when that
    came: a little after it was true, so that what is reckoned from it is never too late.

    ``waited_s`` is how long it has waited for a coordinator that was away. The coordinator is told: while a query waits
    for it, the query sees none of its input, so that time must not count as anybody's silence.

    It can be pickled (Spark Connect runs the hook in another process); the connection is made where it is used.
    """

    def __init__(
        self,
        url: str,
        job: str,
        key: str | None,
        patience: Patience,
        transport: httpx.BaseTransport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        parts = httpx.URL(url)
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InvalidUsage(f"{url!r} is no address of a coordinator; it looks like http://host:8000.")
        self.url, self.job, self.key, self.patience = url.rstrip("/"), job, key, patience
        self.transport, self.clock = transport, clock
        self.authorization = f"Bearer {key}" if key else None
        self.headers = {"Content-Type": "application/json"}
        if self.authorization:
            self.headers["Authorization"] = self.authorization
        self.watermark_token: str | None = None
        self._learnt: tuple[str | None, int | None] = (None, None)
        self.waited_s = 0.0
        self.heard = (0, clock.monotonic())
        self.stopped: Callable[[], bool] = _never
        self._client: httpx.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "stopped": _never}

    def for_a_run(self) -> "Coordinator":
        """Another one like this, that has not waited yet. Its ``stopped`` may be set: whether that run was."""
        theirs = copy.copy(self)
        theirs.waited_s, theirs._client = 0.0, None
        return theirs

    # -- the job --------------------------------------------------------------------------------------------------

    def create_job(self, config: JobConfig, patience: Patience | None = None) -> dict[str, Any] | None:
        """Creates the job; returns None, changing nothing, where there is one already."""
        try:
            return self._job("PUT", "", config, {"If-None-Match": "*"}, patience)
        except Refused as refusal:
            if refusal.code != "job_exists":
                raise
            return None

    def change_job(self, config: JobConfig) -> dict[str, Any]:
        """Puts other rules in force."""
        return self._job("PUT", "", config, {"If-Match": "*"})

    def status(self, patience: Patience | None = None) -> dict[str, Any]:
        return self._job("GET", "", patience=patience)

    def declare(
        self,
        query: str,
        names: Sequence[str],
        reason: str,
        max_event_times: Mapping[str, int] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """``max_event_times``: highest event times of substreams that the job may have lost."""
        max_event_times = max_event_times or {}
        # Between two calls the watermark may move: those that hold it come first.
        ordered = sorted(names, key=lambda name: (name in max_event_times, max_event_times.get(name, 0)))
        columns: dict[str, list[Any]] = {"names": ordered}
        if max_event_times:
            columns["max_event_times"] = [max_event_times.get(name) for name in ordered]
        for part in in_calls(columns):
            self._job("POST", ":declare", {"query": query, "reason": reason, **part}, patience=patience)

    def done(self, query: str, names: Sequence[str], reason: str) -> dict[str, Any]:
        return self._job("POST", "/substreams:done", {"query": query, "names": list(names), "reason": reason})

    def idle(self, query: str, names: Sequence[str], reason: str) -> None:
        """Stop waiting for substreams of a query, until they report again."""
        for part in in_calls({"names": list(names)}):
            self._job("POST", "/substreams:idle", {"query": query, "reason": reason, **part})

    def complete(self, reason: str, up_to: int | None = None) -> dict[str, Any]:
        return self._job("POST", ":complete", {"reason": reason, "up_to": up_to})

    def coalesced_watermark(self) -> int | None:
        """The coalesced watermark."""
        watermark: int | None = self._job("GET", "/watermark")["coalesced_watermark"]
        return watermark

    def queries(self, patience: Patience | None = None) -> list[dict[str, Any]]:
        """The queries of the job, with their checkpoints."""
        rows: list[dict[str, Any]] = self._job("GET", "/queries", patience=patience)["queries"]
        return rows

    def substreams(self) -> list[dict[str, Any]]:
        """The whole table of substreams."""
        rows: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self._job("GET", f"/substreams?limit=1000&after={quote(after, safe='')}")
            rows += page["substreams"]
            if page["next"] is None:
                return rows
            after = page["next"]

    # -- batches --------------------------------------------------------------------------------------------------

    def begin(
        self,
        query: str,
        run: Run,
        batch_id: int,
        keep: int,
        pinned_watermark: Mapping[str, int | None],
        settled: Moment | None,
        patience: Patience,
    ) -> dict[str, Any]:
        """``pinned_watermark``: ``{"pinned_watermark": ...}`` where the client keeps one, empty where it does not.
        ``settled``: all
        input that
        was there at that moment is in this batch or one before; None: no such moment is known.
        """

        def said(waited_s: float) -> Body:
            age_ms = None if settled is None else settled.age_ms(self.clock.time(), waited_s)
            return {"pinned_watermarks_to_keep": keep, "input_age_ms": age_ms, **pinned_watermark}

        return self._batch("PUT", query, run, batch_id, "", said, patience)

    def report(self, query: str, run: Run, batch_id: int, reports: Iterable[Body], patience: Patience) -> None:
        """Stages what was seen of a batch: all of it, or (when it raises) some."""
        for columns in reports:
            batch = batch_of(query, run, batch_id)
            said = {**columns, "batch": batch, "watermark_token": self.watermark_token}
            with self._waiting():
                self._job("POST", ":report", said, patience=patience, proves=True)

    def commit(
        self,
        query: str,
        run: Run,
        batch_id: int,
        rows: Mapping[str, Any] | None,
        reported: int | None,
        patience: Patience,
    ) -> dict[str, Any]:
        """``rows``: the account of them. ``reported``: of how many substreams rows were reported."""
        said = {"rows": rows, "reported": reported}
        return self._batch("POST", query, run, batch_id, ":commit", lambda waited_s: said, patience)

    def heartbeat(self, query: str, run: Run, age_s: float, after_batch: int | None) -> dict[str, Any]:
        """Caught up, no new data: seen to be so ``age_s`` ago. Sent once, for the next one brings the same news.

        ``after_batch``: the last one that the query has finished, None if there was none in this run.
        """
        heard_ms, at = self.heard
        observed_ms = max(0, heard_ms + int(1000 * (self.clock.monotonic() - age_s - at)))
        said = self._said_by(run, observed_ms=observed_ms, after_batch=after_batch)
        return self._job("POST", f"/queries/{query}:heartbeat", said, patience=Patience(0), proves=True)

    def retire(self, query: str, successor: str | None, reason: str) -> dict[str, Any]:
        whose: Body = {"evict": True} if successor is None else {"successor": successor}
        return self._job("POST", f"/queries/{query}:retire", {**whose, "reason": reason})

    def watermark_url(self) -> str:
        return f"{self.url}/v1/jobs/{self.job}/watermark"

    def report_path(self) -> str:
        return f"/v1/jobs/{self.job}:report"

    def _said_by(self, run: Run, **said: Any) -> dict[str, Any]:
        """What a run says, with what every one says of itself."""
        waited_ms = int(1000 * self.waited_s)
        return {**run, "watermark_token": self.watermark_token, "waited_ms": waited_ms, **said}

    def _batch(
        self,
        method: str,
        query: str,
        run: Run,
        batch_id: int,
        verb: str,
        said: Callable[[float], Body],
        patience: Patience,
    ) -> dict[str, Any]:
        """``said`` is asked for every attempt, with for how long the run has waited by then."""
        with self._waiting() as began:

            def body() -> Body:
                waited_s = self.waited_s + outage_since(began, self.clock)
                return self._said_by(run, waited_ms=int(1000 * waited_s), **said(waited_s))

            path = f"/queries/{query}/batches/{batch_id}{verb}"
            return self._job(method, path, body, patience=patience, proves=True)

    @contextmanager
    def _waiting(self) -> Iterator[float]:
        """Around a call that the query waits for, so that what it waits is lost to it. Gives when that began."""
        began = self.clock.monotonic()
        try:
            yield began
        finally:
            self.waited_s += outage_since(began, self.clock)

    def _job(
        self,
        method: str,
        path: str,
        body: Body | Callable[[], Body] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        proves: bool = False,
    ) -> dict[str, Any]:
        """One call under ``/v1/jobs/{job}``; a body that is a function is made anew for every attempt.

        ``proves``: it brings the watermark token along.

        :raises JobMissing, Refused, CoordinatorUnavailable: see the errors.
        """
        url = f"{self.url}/v1/jobs/{self.job}{path}"

        def send(timeout_s: float) -> tuple[int, bytes]:
            if self._client is None:
                # Loading the certificate authorities takes 30 ms, which plain HTTP does not need.
                secured = self.url.startswith("https:")
                self._client = httpx.Client(headers=self.headers, transport=self.transport, verify=secured)
                # Queries come and go in a program that lives long: with them go their connections.
                weakref.finalize(self, self._client.close)
            try:
                response = self._client.request(
                    method,
                    url,
                    json=body() if callable(body) else body,
                    headers=headers,
                    timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
                )
            except httpx.TransportError as error:
                raise NoAnswer(f"{self.url}: {error or type(error).__name__}") from error
            return response.status_code, response.content

        what = f"{method} {self.job}{path.partition('?')[0]}"
        try:
            answer = (patience or self.patience).call(what, send, self.stopped, self.clock)
        except JobMissing as missing:
            raise missing.of(self.job) from None
        except Refused as refusal:
            if refusal.code == "no_such_path":
                raise InvalidUsage(f"{self.url!r} is no coordinator's address: before its /v1 comes no path.") from None
            raise
        if proves:
            self._learn(answer)
        if "now_ms" in answer:
            self.heard = answer["now_ms"], self.clock.monotonic()
        return answer

    def _learn(self, answer: Mapping[str, Any]) -> None:
        """Takes the token of an answer to a call that brought the last one: it proves no less.

        Other answers may come from a coordinator that has forgotten, and is yet to be told; and one that was under way
        for long may prove less than one that came meanwhile.
        """
        epoch, watermark = answer["state_epoch"], answer["watermark"]
        known_epoch, known = self._learnt
        if epoch != known_epoch or known is None or (watermark is not None and watermark >= known):
            self.watermark_token, self._learnt = answer["watermark_token"], (epoch, watermark)

    def ensure_job(self, config: JobConfig | None, patience: Patience | None = None) -> dict[str, Any]:
        """The job is there after this: created from ``config`` if need be, and never changed. Returns its status.

        :raises JobMissing: where there is none, and no rules to create it from.
        """
        if config is not None and (created := self.create_job(config, patience)) is not None:
            log.info("Created job %s.", self.job)
            return created
        status = self.status(patience)
        if config is not None and (others := differing(status["config"], config)):
            both = "; ".join(f"{name}: {status['config'].get(name)}, here {config.get(name)}" for name in others)
            log.warning(
                "Job %s has other rules than this program's, and keeps them (%s). To put these in force: "
                "job.change_config(rules).",
                self.job,
                both,
            )
        return status
