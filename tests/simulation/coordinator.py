"""The coordinator of a simulation: the Python machine behind the client's requests, and the loss of its state.

The schemas of the API parse the bodies. The state is rebuilt from a log of commands, so that it can be thrown back to
any earlier point, as if Redis had lost the end of its own log.
"""

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.loop import HostClock, Loop
from tidegate.app import MIN_OUTAGE_MS
from tidegate.domain import batches, commands
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import DomainError
from tidegate.domain.evaluate import next_change_ms, watermark_state
from tidegate.domain.frames import frames_between
from tidegate.domain.job import JobState, Run, TokenClaim
from tidegate.domain.results import Begun, Effect, JobWatermark
from tidegate.domain.views import queries
from tidegate.http.problems import ERRORS
from tidegate.http.schemas import BeginRequest, CommitRequest, HeartbeatRequest, Report
from tidegate.views.config import parsed_config
from tidegate.views.types import attributes
from tidegate_spark.protocol.effects import Response, Send

BATCH = re.compile(r"/queries/([^/]+)/batches/(\d+)(:commit)?")
HEARTBEAT = re.compile(r"/queries/([^/]+):heartbeat")

FRAMES_READ = 10_000
Command = Callable[..., Any]


@dataclass
class Coordinator:
    """One coordinator with one job.

    Attributes:
        loop: The virtual time.
        document: The configuration with which clients create the job.
        is_away: Whether the coordinator answers no request.
        keeps_fingerprints: Whether to keep a fingerprint of the state after each command.
    """

    loop: Loop
    document: Mapping[str, Any]
    is_away: bool = False
    keeps_fingerprints: bool = False
    job: JobState | None = None
    _log: list[tuple[Command, tuple[Any, ...]]] = field(default_factory=list)
    _created: tuple[str, int] = ("", 0)
    _epochs: int = 0
    _fingerprints: list[Hashable] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        """Set the clock of the coordinator's host, and parse the configuration."""
        self.clock = HostClock(self.loop)
        self._config = parsed_config(self.document)
        self._documents: dict[JobConfig, Mapping[str, Any]] = {self._config: self.document}

    # -- state ----------------------------------------------------------------------------------------------------

    def apply(self, command: Command, *arguments: Any) -> Any:
        """Apply a command to the job and log it; ``arguments`` follow the job. A refused command is not logged."""
        assert self.job is not None
        result = command(self.job, *arguments)
        self._log.append((command, arguments))
        if self.keeps_fingerprints:
            self._fingerprints.append(_fingerprint(self.job))
        return result

    def lose_tail(self, commands_lost: int) -> None:
        """Lose the latest commands, as if a server without ``appendfsync always`` had stopped."""
        kept = self._log[: max(0, len(self._log) - commands_lost)]
        self._start()
        for command, arguments in kept:
            command(self.job, *arguments)
        self._log, self._fingerprints = kept, self._fingerprints[: len(kept) + 1]

    def lose_all(self) -> None:
        """Lose the job."""
        self.job, self._log = None, []

    def reset(self) -> None:
        """Reset the job."""
        self._epochs += 1
        self.apply(commands.reset, self.now_ms, f"epoch-{self._epochs}")

    def configure(self, document: Mapping[str, Any]) -> None:
        """Change the configuration of the job."""
        config = parsed_config(document)
        self._documents[config] = document
        self.apply(commands.configure, config, self.now_ms)

    def sweep(self) -> None:
        """Evaluate the job if time alone may change it."""
        if self.job is not None and next_change_ms(self.job) is not None:
            self.apply(commands.sweep, self.now_ms)

    @property
    def current_document(self) -> Mapping[str, Any]:
        """The current configuration of the job."""
        assert self.job is not None
        return self._documents[self.job.config]

    @property
    def now_ms(self) -> int:
        """The time of the coordinator's host."""
        return self.loop.now_ms + self.clock.offset_ms

    @property
    def length(self) -> int:
        """Number of commands in the log."""
        return len(self._log)

    def fingerprints(self, tail: int) -> tuple[Hashable, ...]:
        """Return a value of the state, and of the states before each of the latest ``tail`` commands."""
        return tuple(self._fingerprints[-1 - tail :])

    def _start(self) -> None:
        epoch, now_ms = self._created
        self.job = JobState(self._config, now_ms, state_epoch=epoch, unattended_after_ms=MIN_OUTAGE_MS)
        commands.create(self.job)

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, request: Send) -> Response:
        """Answer a request."""
        path = request.path.removeprefix("/v1/jobs/j")
        body = json.loads(json.dumps(request.body))
        if request.method == "PUT" and not path:
            return self._create()
        if self.job is None:
            return _refusal("job_not_found")
        try:
            return _response(self._answer(path, request.method, body))
        except DomainError as error:
            return _refusal(error.code)

    def _create(self) -> Response:
        if self.job is not None:
            return _refusal("job_exists")
        self._epochs += 1
        self._created = f"epoch-{self._epochs}", self.now_ms
        self._start()
        return _response(self._status())

    def _answer(self, path: str, method: str, body: Any) -> dict[str, Any]:
        if found := BATCH.fullmatch(path):
            return (self._commit if found[3] else self._begin)(found[1], int(found[2]), body)
        if path == ":report":
            return self._stage(body)
        if found := HEARTBEAT.fullmatch(path):
            return self._heartbeat(found[1], body)
        if path == ":declare":
            times = dict(zip(body["substreams"], body.get("max_event_times", ()), strict=False))
            known = {name: time for name, time in times.items() if time is not None}
            done = self.apply(commands.declare, body["query"], body["substreams"], self.now_ms, known)
            return self._members(done.state)
        if path == "/queries":
            assert self.job is not None
            return {"queries": [asdict(row) for row in queries(self.job)]}
        if path == "/frames":
            assert self.job is not None
            frames = [asdict(frame) for frame in frames_between(self.job, None, None, FRAMES_READ)]
            return {**self._members(watermark_state(self.job)), "frames": frames}
        assert (method, path) in (("GET", ""), ("GET", "/watermark")), f"unknown request {method} {path}"
        return self._status()

    def _begin(self, query: str, batch_id: int, body: Any) -> dict[str, Any]:
        parsed = BeginRequest.model_validate(body)
        run = Run(query, parsed.query_id, parsed.run_id)
        token = _claim(parsed.watermark_token)
        begun: Begun = self.apply(batches.begin, run, batch_id, self.now_ms, parsed.options, token)
        members = attributes(begun)
        return {**self._members(members.pop("state")), **members}

    def _stage(self, body: Any) -> dict[str, Any]:
        report = Report.model_validate(body)
        batch = report.batch
        assert batch is not None
        run, partition = Run(batch.query, batch.query_id, batch.run_id), _of_partition(report, batch.partition)
        token = _claim(report.watermark_token)
        return self._result(self.apply(batches.stage, run, batch.batch_id, partition, self.now_ms, token))

    def _commit(self, query: str, batch_id: int, body: Any) -> dict[str, Any]:
        parsed = CommitRequest.model_validate(body)
        run = Run(query, parsed.query_id, parsed.run_id)
        rows, token = parsed.rows and parsed.rows.accounting(), _claim(parsed.watermark_token)
        caught_up = None if parsed.caught_up is None else batches.CaughtUp(parsed.caught_up, parsed.caught_up_age_ms)
        offsets = None if parsed.offsets is None else parsed.offsets.columns
        more = rows, self.now_ms, parsed.waited_ms, parsed.reported, token, caught_up, offsets, parsed.table_versions
        committed = self.apply(batches.commit, run, batch_id, *more)
        return {**self._result(committed), "unfinished_frame": committed.unfinished_frame}

    def _heartbeat(self, query: str, body: Any) -> dict[str, Any]:
        parsed = HeartbeatRequest.model_validate(body)
        run = Run(query, parsed.query_id, parsed.run_id)
        token, caught_up = _claim(parsed.watermark_token), parsed.caught_up
        more = parsed.observed_ms, self.now_ms, parsed.waited_ms, parsed.after_batch, token, caught_up, None
        told = "output_watermark" in parsed.model_fields_set, parsed.output_watermark, parsed.table_versions
        return self._result(self.apply(batches.heartbeat, run, *more, *told))

    def _result(self, result: Effect) -> dict[str, Any]:
        return {**self._members(result.state), "applied": result.applied}

    def _status(self) -> dict[str, Any]:
        job = self.job
        assert job is not None
        config = {"config": self.current_document, "revision": job.revision}
        return {**self._members(watermark_state(job)), **config}

    def _members(self, state: JobWatermark) -> dict[str, Any]:
        return {
            "incarnation": state.incarnation,
            "state_epoch": state.state_epoch,
            "now_ms": state.now_ms,
            "watermark": state.watermark,
            "coalesced_watermark": state.coalesced_watermark,
            "written_watermark": state.written_watermark,
            "watermark_token": f"{state.incarnation}.{state.watermark}",
        }


def _fingerprint(job: JobState) -> Hashable:
    watermarks = job.coalesced_watermark, job.watermark, job.written_watermark, job.max_watermark
    epoch = job.incarnation, job.state_epoch
    substreams = sorted(
        (key, repr((each.max_event_time, each.watermark, each.uncapped_watermark, each.done, each.idle)))
        for key, each in job.substreams.items()
    )
    queries = sorted((name, repr(query)) for name, query in job.queries.items())
    return hash((epoch, watermarks, job.max_event_time, tuple(substreams), tuple(queries), job.total))


def _of_partition(report: Report, partition: int) -> PartitionReport:
    """Return the report of a partition as a domain object."""

    def by_name(column: Sequence[int | None] | None) -> dict[str, int]:
        values = zip(report.substreams, column or (), strict=False)
        return {name: value for name, value in values if value is not None}

    delays = zip(report.substreams, report.delays or (), strict=False)
    return PartitionReport(
        partition,
        by_name(report.max_event_times),
        by_name(report.counts),
        by_name(report.watermarks),
        by_name(report.future_counts),
        {name: tuple(rows) for name, rows in delays if rows},
    )


def _claim(token: str | None) -> TokenClaim | None:
    """Return the claim of a token. The tokens of a simulation carry no MAC, because no client forges them."""
    if token is None:
        return None
    incarnation, _, watermark = token.partition(".")
    return TokenClaim(int(incarnation), None if watermark == "None" else int(watermark))


def _response(answer: Mapping[str, Any]) -> Response:
    return Response(200, json.dumps(answer).encode())


def _refusal(code: str) -> Response:
    return Response(ERRORS[code].status, json.dumps({"code": code, "detail": code}).encode())
