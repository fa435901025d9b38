"""What the history of a table says about the batches that it has, and about the event times up to which it is complete.

Each guarded append writes a record into its own commit: into the summary of the snapshot in Iceberg, into
``userMetadata`` in Delta Lake. The record has the batch, so that a replay finds it, and a *claim*: the job, and the
watermark up to which the table has all rows on time.

A claim holds for the version with the record and for its descendants. A version from before a rollback is no ancestor
of the current one, so its claims do not count.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tidegate_spark.batch import utc_text
from tidegate_spark.errors import InvalidUsage

PREFIX = "tidegate."
"""Prefix of the names in the summary of a snapshot and in the properties of a table of Iceberg."""

WRITER, BATCH = f"{PREFIX}writer", f"{PREFIX}batch"
"""Names in a summary. The writer is a value, because Spark converts the names to lower case."""

MEMBER = "tidegate"
"""The member of Delta Lake's ``userMetadata``, a JSON object, that has the record."""

PUBLISHED = "published"
"""What a record of Delta Lake has in place of a writer if it only publishes a watermark."""

Source = Literal["rows", "published"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Up to which event time a version of a table has all rows on time.

    Rows below ``watermark`` at ``version`` are the same in each later read, because the version does not change.

    Attributes:
        job: Name of the job.
        watermark: Rows below this event time are in the table: epoch milliseconds, or the unit of a numeric event time.
        version: The version of the table that was read: a version of Delta Lake, or the id of a snapshot of Iceberg.
        claimed_in: The version whose commit has the claim. None for a property of an Iceberg table.
        frames_until: End of the last finished frame when the claim was written; None if the job had finished none.
        source: ``rows``: from the commit of a batch. ``published``: from ``publish_watermark``.
        incarnation: Incarnation of the job, which rises when an operator resets or deletes the job. Claims of an
            earlier incarnation no longer count.
    """

    job: str
    watermark: int
    version: int
    claimed_in: int | None
    frames_until: int | None
    source: Source
    incarnation: int = 1

    def __str__(self) -> str:
        """Return the claim as a sentence."""
        return (
            f"Version {self.version} has all rows on time below {utc_text(self.watermark)} ({self.watermark}) of job "
            f"{self.job}."
        )


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """The record of an append, for the table's own commit.

    Attributes:
        writer: What is written: the id of the checkpoint, the output, and the part of a function that appends to a
            table several times.
        batch_id: Spark's id of the batch.
        planned_ms: Time at which Spark planned the batch (epoch milliseconds). A restored checkpoint may have another
            batch with the same id. None if not known.
        job: Name of the job.
        query: Name of the query.
        watermark: The claim; None if the append makes none.
        frames_until: As in :class:`Claim`.
        incarnation: As in :class:`Claim`.
    """

    writer: str
    batch_id: int
    planned_ms: int | None
    job: str
    query: str
    watermark: int | None
    frames_until: int | None
    incarnation: int

    def _claim(self) -> dict[str, Any]:
        if self.watermark is None:
            return {}
        until = {} if self.frames_until is None else {"frames_until": self.frames_until}
        return {"watermark": self.watermark, "incarnation": self.incarnation, **until}

    def _members(self) -> dict[str, Any]:
        planned = {} if self.planned_ms is None else {"planned_ms": self.planned_ms}
        names = {"writer": self.writer, "batch": self.batch_id, "job": self.job, "query": self.query}
        return {**names, **planned, **self._claim()}

    def summary(self) -> dict[str, str]:
        """Return the record as properties of a snapshot of Iceberg."""
        return {f"{PREFIX}{name}": str(value) for name, value in self._members().items()}

    def user_metadata(self) -> str:
        """Return the record as ``userMetadata`` of a commit of Delta Lake."""
        return json.dumps({MEMBER: self._members()})


@dataclass(frozen=True, slots=True)
class PublishedWatermark:
    """A watermark of a job that is published in a table, with the job's incarnation."""

    job: str
    incarnation: int
    watermark: int

    def is_passed_by(self, claim: Claim | None) -> bool:
        """Return whether a claim of the same job says as much, or more."""
        return claim is not None and (claim.incarnation, claim.watermark) >= (self.incarnation, self.watermark)

    def user_metadata(self) -> str:
        """Return it as ``userMetadata`` of a commit of Delta Lake."""
        return json.dumps({MEMBER: {"writer": PUBLISHED, **asdict(self)}})

    def properties(self, snapshot: int) -> dict[str, str]:
        """Return it as properties of an Iceberg table.

        The properties do not go back with the table, so they name the snapshot that was the current one.
        """
        members = {"watermark": self.watermark, "incarnation": self.incarnation, "snapshot": snapshot}
        return {f"{PREFIX}{name}.{self.job}": str(value) for name, value in members.items()}


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A version of a table, with what Tidegate has recorded in its commit.

    Attributes:
        version: The version.
        writer: The writer in the record; None without a record.
        batch_id: The batch in the record.
        planned_ms: As in :class:`AppendRecord`.
        claim: The claim, as if this were the version that is read; None if the commit makes none.
    """

    version: int
    writer: str | None
    batch_id: int | None
    planned_ms: int | None
    claim: Claim | None


@dataclass(frozen=True, slots=True)
class TableHistory:
    """A version of a table, and its ancestors.

    Attributes:
        commits: The versions, latest first. Versions that a rollback has undone are missing.
        is_cut: Whether earlier versions are no longer known.
        published: Watermarks in the properties of an Iceberg table, which concern all versions.
    """

    commits: tuple[TableCommit, ...]
    is_cut: bool
    published: tuple[Claim, ...] = ()

    def latest_of(self, writer: str) -> TableCommit | None:
        """Return the latest version that a writer has made; None if no version records one."""
        return next((commit for commit in self.commits if commit.writer == writer), None)

    def claim(self, job: str | None = None) -> Claim | None:
        """Return the highest claim of a job; None if no version has one.

        Args:
            job: Name of the job; None: the only job that has written claims.

        Raises:
            InvalidUsage: If several jobs have written claims, and ``job`` is None.
        """
        found = [*self.published, *(commit.claim for commit in self.commits if commit.claim is not None)]
        jobs = sorted({claim.job for claim in found})
        if job is None and len(jobs) > 1:
            raise InvalidUsage(f"Several jobs have written claims into this table: {', '.join(jobs)}. Name the job.")
        of_job = [claim for claim in found if job in (None, claim.job)]
        if not of_job:
            return None
        best = max(of_job, key=lambda claim: (claim.incarnation, claim.watermark))
        untils = [each.frames_until for each in of_job if each.incarnation == best.incarnation]
        until = max((each for each in untils if each is not None), default=None)
        return replace(best, version=self.commits[0].version, frames_until=until)


def iceberg_history(metadata: Mapping[str, Any], version: int | None = None) -> TableHistory:
    """Return the history of an Iceberg table.

    Args:
        metadata: The table's metadata, as the specification of Iceberg defines its JSON.
        version: Id of the snapshot to begin with; None: the current one.

    Raises:
        InvalidUsage: If the table has no such snapshot.
    """
    current = metadata.get("current-snapshot-id")
    current = None if current == -1 else current
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    at = current if version is None else version
    if version is not None and version not in snapshots:
        raise InvalidUsage(f"The table has no snapshot {version}: it has expired, or it belongs to another table.")
    commits = []
    while at in snapshots:
        commits.append(_snapshot(snapshots[at]))
        at = snapshots[at].get("parent-snapshot-id")
    ancestors = {commit.version for commit in commits}
    published = () if version is not None else tuple(_published(metadata.get("properties") or {}, ancestors))
    return TableHistory(tuple(commits), at is not None, published)


def _snapshot(snapshot: Mapping[str, Any]) -> TableCommit:
    summary: Mapping[str, str] = snapshot.get("summary") or {}
    record = {name.removeprefix(PREFIX): value for name, value in summary.items() if name.startswith(PREFIX)}
    if not {WRITER, BATCH} <= summary.keys():
        record = {}
    return _table_commit(record, snapshot["snapshot-id"], "rows")


def _table_commit(record: Mapping[str, Any], version: int, source: Source) -> TableCommit:
    batch_id, planned_ms = (None if record.get(name) is None else int(record[name]) for name in ("batch", "planned_ms"))
    writer = None if batch_id is None else str(record["writer"])
    return TableCommit(version, writer, batch_id, planned_ms, _claim(record, version, source))


def _claim(record: Mapping[str, Any], version: int, source: Source) -> Claim | None:
    if record.get("watermark") is None:
        return None
    until = record.get("frames_until")
    until, incarnation = None if until is None else int(until), int(record["incarnation"])
    return Claim(record["job"], int(record["watermark"]), version, version, until, source, incarnation)


def _published(properties: Mapping[str, str], ancestors: Iterable[int]) -> Iterator[Claim]:
    of_watermark = f"{PREFIX}watermark."
    for name in properties:
        job = name.removeprefix(of_watermark)
        members = [properties.get(f"{PREFIX}{member}.{job}") for member in ("watermark", "incarnation", "snapshot")]
        if not name.startswith(of_watermark) or None in members:
            continue
        watermark, incarnation, snapshot = (int(each or 0) for each in members)
        if snapshot in ancestors:
            yield Claim(job, watermark, snapshot, None, None, "published", incarnation)


def delta_history(entries: Iterable[Mapping[str, Any]], version: int | None = None) -> TableHistory:
    """Return the history of a table of Delta Lake.

    Args:
        entries: The commits, as ``DESCRIBE HISTORY`` returns them: ``version``, ``operation``, ``operationParameters``
            and ``userMetadata``.
        version: The version to begin with; None: the latest one.

    Raises:
        InvalidUsage: If the table has no such version, or no longer its commit.
    """
    known = {int(entry["version"]): entry for entry in entries}
    at: int | None = max(known) if version is None else version
    if at not in known:
        raise InvalidUsage(f"The history of the table has no version {at}: its commit was removed, or never existed.")
    commits = []
    while at is not None and at in known:
        commits.append(_commit(at, known[at]))
        at = _parent(at, known[at])
    return TableHistory(tuple(commits), at is None or at >= 0)


def _commit(version: int, entry: Mapping[str, Any]) -> TableCommit:
    record = _record(entry.get("userMetadata"))
    return _table_commit(record, version, "rows" if "batch" in record else "published")


def _record(user_metadata: str | None) -> Mapping[str, Any]:
    """Return the record in ``userMetadata``, which may be any text of another writer."""
    try:
        record = json.loads(user_metadata or "null")
    except ValueError:
        return {}
    own = record.get(MEMBER) if isinstance(record, dict) else None
    return own if isinstance(own, dict) else {}


def _parent(version: int, entry: Mapping[str, Any]) -> int | None:
    """Return the version whose rows a version has continued; None if it is not known."""
    if entry["operation"] != "RESTORE":
        return version - 1
    restored = (entry.get("operationParameters") or {}).get("version")
    return None if restored is None else int(restored)
