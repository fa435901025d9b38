"""Snapshots: the part of a job that ``explain`` of the domain needs, from the reply of the function ``explain``.

A snapshot contains the holds, the open batches and the slowest active substreams. All other possible holders have
equal or higher watermarks. The watermark without a holder is therefore equal to that in the whole job.
"""

import json
from dataclasses import dataclass
from typing import Any

from tidegate.domain.config import JobConfig
from tidegate.domain.job import JobState, Query, Substream
from tidegate.domain.policies import PolicyState, ProcessingTime, TimestampHistory
from tidegate.store.functions import Reply, record
from tidegate.store.replies import hold, substream_key, watermark_state


class FixedState(PolicyState):
    """A policy state at one point in time: its watermark, and the time of its next change."""

    def __init__(self, watermark: int | None, next_change_ms: int | None) -> None:
        self.watermark, self.lagged, self._next_change_ms = watermark, None, next_change_ms

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return the time of the next change, as of the snapshot."""
        return self._next_change_ms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The reply from which an explanation is computed."""

    reply: Reply

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the job, as the client sent it."""
        config: dict[str, Any] = json.loads(self.reply["config"])
        return config

    def job(self, config: JobConfig) -> JobState:
        """Return the state of the job under its parsed configuration."""
        reply, found = self.reply, watermark_state(self.reply)
        job = JobState(
            config,
            found.now_ms,
            found.incarnation,
            found.state_epoch,
            unattended_ms=reply["unattended_ms"],
            is_complete=found.complete,
            coalesced_watermark=found.coalesced_watermark,
            coalesced_watermark_since_ms=reply["coalesced_watermark_since_ms"],
            watermark=found.watermark,
            watermark_since_ms=reply["watermark_since_ms"],
            max_watermark=reply.get("max_watermark"),
            holds={one.hold: one for one in map(hold, reply["holds"])},
        )
        if config.max_retention_ms is not None and reply.get("retention"):
            job.retention = _history(reply["retention"])
        self._add_queries(job)
        self._add_substreams(job)
        return job

    def _add_queries(self, job: JobState) -> None:
        for of in map(record, self.reply["queries"]):
            query = job.queries[of["query"]] = Query("", "", job.now_ms)
            query.outage_ms, query.idle_clock_ms = of["outage_ms"], of.get("idle_clock_ms")
            if of.get("last_seen_ms") is not None:
                job.last_seen[of["query"]] = of["last_seen_ms"]
        for of in map(record, self.reply["open_batches"]):
            query = job.queries[of["query"]]
            query.latest, query.open, query.begun_ms = of["batch_id"], True, of["begun_ms"]
            query.begun_observed_ms = of["begun_observed_ms"]
            query.pinned_watermarks[of["batch_id"]] = of.get("pinned_watermark")

    def _add_substreams(self, job: JobState) -> None:
        for of in map(record, self.reply["substreams"]):
            key = substream_key(of["member"])
            watermark = of.get("watermark")
            job.substreams[key] = Substream(
                job.config.policy_of(key[1]),
                FixedState(watermark, of.get("next_change_ms")),
                of["last_event_ms"],
                of.get("max_event_time"),
                watermark,
            )


def _history(line: str) -> TimestampHistory:
    length, boundary, *cells = line.split(",")
    history = TimestampHistory(int(length))
    history.boundary, history.cells = int(boundary), [int(cell) if cell else None for cell in cells]
    return history
