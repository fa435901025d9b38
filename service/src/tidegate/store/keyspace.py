"""The keyspace, as Python constants and as a Lua table in the library of functions.

A function gets the key of the job as its first key and builds the other keys of the job from the table below. The
second key is the set of due jobs. Each command also updates this set, so that it always contains every job that may
change without new data. The third key is the set of jobs, for functions that create or delete jobs. The next two keys
are about deleted jobs, and the last one is about the time in which no coordinator ran.

On a single server, all keys of a job share the hash tag ``{job}``, and all jobs share :data:`SWEEPS` and :data:`JOBS`.
A Redis Cluster spreads the jobs over buckets. The hash tag is then the bucket, and each bucket has both sets, so that a
function uses the keys of one slot. The other keys of a call exist once for each bucket, too.
"""

from dataclasses import dataclass
from typing import Literal

from redis.crc import key_slot

PREFIX = "tidegate:"
ATTENDANCE = PREFIX + "attendance"
"""Hash: ``until`` -> processing time of the last command; ``unattended`` -> total time in which no coordinator ran;
``confirmed`` -> a constant (see ``confirm`` in ``lua/coordinator.lua``)."""
BUCKETS = PREFIX + "buckets"
"""Number of buckets of a Redis Cluster."""
DELETED = PREFIX + "deleted"
"""Sorted set of the jobs with a tombstone: job -> processing time of the deletion."""
INCARNATION = PREFIX + "incarnation"
"""Highest incarnation of all deleted jobs. A job without a tombstone starts in a higher one, because clients may still
have tokens of a deleted job with its name."""
JOBS = PREFIX + "jobs"
"""Set of the names of all jobs, without deleted jobs. The key of a deleted job stays as a tombstone for some time."""
TOMBSTONE_KEPT_MS = 7 * 24 * 3_600_000
"""Time for which a tombstone stays. Until then, calls about the deleted job are refused with ``job_deleted``."""
TOMBSTONES_KEPT = 10_000
"""Number of tombstones that stay, so that a client that creates and deletes jobs does not fill Redis."""
API_KEYS = PREFIX + "keys"
"""Hash of the last uses of API keys: key id -> Unix time in seconds."""
PROBE = PREFIX + "probe"
"""Key that a check writes to test whether the server accepts writes."""
SCHEMA = 1
"""Version of the stored state. The hash of each job has its schema, and the functions refuse a job with a newer one.

Raise it when older functions would misread the state, and let the functions read all older schemas. A job without a
schema has the first one.
"""
SCHEMA_IN_STEPS = SCHEMA + 0.5
"""Schema of a job while a command changes it in steps, so that functions without steps refuse the job until the end."""
SCHEMAS = PREFIX + "schemas"
"""Sorted set with one member: the newest schema of all coordinators that have used the store."""
SECRET = PREFIX + "secret"
"""MAC key of the watermark tokens, if no secret is configured."""
SWEEPS = PREFIX + "sweeps"
"""Sorted set of the jobs that may change without new data. The score is the time of the next sweep."""
WAKE = PREFIX + "wake:"
"""Prefix of the channels that announce new records of a job."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """A key of a job. If ``per`` is set, the job has one such key for each query, limit, hour, interval or call."""

    name: str
    holds: str
    per: Literal["", "query", "limit", "hour", "interval", "call"] = ""


# A member is "<query>/<substream>". Query names have no slash, so the first slash is the separator.
JOB_KEYS = (
    JobKey(
        "max_event_times", "zset of the substreams unless it is watermark + lag: member -> max event time (-inf: none)"
    ),
    JobKey("active", "zset of the active substreams that do not follow the clock: member -> watermark"),
    JobKey("clock_driven", "hash of the followers, substreams that follow the clock: member -> state of the policy"),
    JobKey("constant", "zset of the active followers with a constant watermark: member -> watermark"),
    JobKey("advancing", "zset of the other active followers: member -> watermark - observed time"),
    JobKey("next_change", "zset of the polled followers: member -> observed time of the next change"),
    JobKey("idle_constant", "zset of the idle followers with a constant watermark: member -> watermark"),
    JobKey("idle_advancing", "zset of the other idle followers: member -> watermark - observed time"),
    JobKey("idle_lagged", "zset of the idle followers: member -> watermark by the lag alone"),
    JobKey("frozen", "zset of the done substreams, and other idle ones: member -> watermark (-inf: none)"),
    JobKey("since", "zset of the substreams whose state has changed: member -> processing time of the last change"),
    JobKey(
        "forced_idle",
        "zset of the substreams that are idle for a reason other than silence: member -> 1 (action), 0 (query timeout)",
    ),
    JobKey("done", "zset of the done substreams: member -> observed time of the last event"),
    JobKey("rows", "hash: '<class> <member>' -> rows"),
    JobKey("missing_queries", "set of the expected queries without substreams"),
    JobKey(
        "last_seen", "zset of the queries that are not timed out or retired: query -> observed time of the last call"
    ),
    JobKey("delays", "hash: member -> sketch of its delays; pool, merged and arrivals -> sketches of the job"),
    JobKey("learned_lags", "hash: member -> learned lag"),
    JobKey("hours", "zset of the hours of event time with rows: hour -> hour"),
    JobKey("queries", "zset of the queries: query -> processing time of the first call"),
    JobKey(
        "query_names", "set of the queries with per-query keys: all of `queries`, and those with declared substreams"
    ),
    JobKey(
        "open_batches", "zset of the open batches: query -> observed time at which the batch began (+inf: released)"
    ),
    JobKey("open_pins", "zset of the open batches that hold W: query -> pinned watermark (-inf: none)"),
    JobKey("unwritten", "zset of the queries with unwritten results: query -> bound of the written watermark"),
    JobKey("frame_records", "hash of the records of frames: start of the first frame -> record, packed"),
    JobKey("frame_starts", "zset of the records of frames: start of the first frame -> itself"),
    JobKey("frame_rows", "hash of the rows of frames: '<start> <class>' -> rows"),
    JobKey("frames_counted", "zset of the frames with rows: start -> start"),
    JobKey("frame_changes", "zset of the finished frames that have changed: start -> observed time of the generation"),
    JobKey("frame_added", "hash of the rows that have changed finished frames: '<start> <class>' -> rows"),
    JobKey("frame_generations", "hash of the generations of frames after the first: start -> list, packed"),
    JobKey("frame_losses", "text: the exclusions of removed substreams and lost offsets, packed"),
    JobKey("frames_unproven", "zset of the records whose frames without rows wait for evidence: start -> start"),
    JobKey("completions", "list of the latest finished frames: end of the frame and processing time"),
    JobKey("writing", "hash: query -> frames whose results it has changed and not written, packed"),
    JobKey("holds", "zset of the holds: name -> value"),
    JobKey("hold_expiry", "zset of the holds that expire: name -> observed time of the expiry"),
    JobKey("hold_reasons", "hash: hold -> reason"),
    JobKey("consumers", "hash of the consumers of the frames: name -> owner, lease and position, packed"),
    JobKey("journal", "stream of records: see tidegate.domain.history"),
    JobKey("timeline", "list of samples of the watermark: see tidegate.domain.history", "interval"),
    JobKey("lagged", "zset of the clock-driven substreams: member -> watermark by the lag alone", "limit"),
    JobKey("last_events", "zset of the query's active substreams: member -> observed time of the last event", "query"),
    JobKey("idle", "zset of the query's idle substreams: member -> observed time of the last event", "query"),
    JobKey("query", "text: the query's run, latest batch and idle clock, packed", "query"),
    JobKey("pinned_watermarks", "hash: batch -> pinned watermark ('': none)", "query"),
    JobKey("pinned_batches", "zset of the batches with a stored pinned watermark: batch -> batch", "query"),
    JobKey("fenced_runs", "zset of the fenced runs, in order", "query"),
    JobKey("staged", "hash of the reports of the open batch: digest -> order and columns, packed", "query"),
    JobKey("offsets", "hash of the latest committed batch that told its offsets: batch and columns, packed", "query"),
    JobKey("coming", "set of the members that the reports of the open batch will add", "query"),
    JobKey("pieces", "hash of the columns of a large command that has not begun: number -> piece, packed", "call"),
    JobKey("replies", "list of the replies to the latest actions and configurations: id of the call and reply, packed"),
    JobKey("columns", "hash of the columns of the command that runs in steps: number -> piece, packed"),
    JobKey("hour_rows", "hash: member ('': the job; '?': no substream) -> rows of this hour", "hour"),
    JobKey("hour_late", "hash: 'updated|dropped|diverted <member>' -> rows of this hour", "hour"),
)


KEPT_BY_RESET = ("journal", "consumers")
"""Keys that a reset of the job keeps, besides its hash and its timeline."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The keys that the jobs of a bucket share.

    Attributes:
        jobs: Set of the names of all jobs of the bucket.
        sweeps: Sorted set of the jobs of the bucket that may change without new data.
        probe: Key that a check writes.
        no_job: Key of the job with an empty name, which never exists.
        deleted: Sorted set of the jobs of the bucket with a tombstone.
        incarnation: Highest incarnation of the deleted jobs of the bucket.
        attendance: Hash about the time in which no coordinator ran.
        guards: Keys that never exist, as further keys of a function call. While a slot moves to another node, a node
            refuses calls with a missing key. Without such a key, a function could start, and then fail at a key that
            has moved.
    """

    jobs: str
    sweeps: str
    probe: str
    no_job: str
    deleted: str
    incarnation: str
    attendance: str
    guards: tuple[str, ...] = ()

    @property
    def of_no_job(self) -> tuple[str, ...]:
        """The keys of a function call for a job that never exists."""
        return self.keys_with(self.no_job)

    def keys_with(self, job_key: str) -> tuple[str, ...]:
        """Return the keys of a function call for the job with a key."""
        return job_key, self.sweeps, self.jobs, self.deleted, self.incarnation, self.attendance, *self.guards


class Keyspace:
    """The names of all keys, on a single server (``buckets`` is None) or on a Redis Cluster."""

    def __init__(self, buckets: int | None = None) -> None:
        self._is_spread = buckets is not None
        self.buckets = (
            (Bucket(JOBS, SWEEPS, PROBE, f"{PREFIX}{{}}", DELETED, INCARNATION, ATTENDANCE),)
            if buckets is None
            else tuple(map(_bucket, range(buckets)))
        )

    def bucket(self, job: str) -> Bucket:
        """Return the bucket of a job."""
        return self.buckets[self._number(job)]

    def job_key(self, job: str) -> str:
        """Return the key of the hash of a job: configuration, watermarks and totals, or the tombstone."""
        return f"{_tag(self._number(job))}/{job}" if self._is_spread else f"{PREFIX}{{{job}}}"

    def key_of(self, job: str, name: str, per: object = None) -> str:
        """Return a key of :data:`JOB_KEYS`; ``per`` is its query, limit, hour, interval or call."""
        return f"{self.job_key(job)}:{name}" if per is None else f"{self.job_key(job)}:{name}:{per}"

    def of_call(self, job: str) -> tuple[str, ...]:
        """Return the keys of a function call for a job."""
        return self.bucket(job).keys_with(self.job_key(job))

    def _number(self, job: str) -> int:
        return key_slot(job.encode(), len(self.buckets)) if self._is_spread else 0


def _tag(number: int) -> str:
    return f"{PREFIX}{{{number}}}"


def _bucket(number: int) -> Bucket:
    tag = _tag(number)
    jobs, sweeps, probe, no_job = f"{tag}:jobs", f"{tag}:sweeps", f"{tag}:probe", f"{tag}/"
    deleted, incarnation, attendance = f"{tag}:deleted", f"{tag}:incarnation", f"{tag}:attendance"
    return Bucket(jobs, sweeps, probe, no_job, deleted, incarnation, attendance, guards=(f"{tag}:absent",))


ONE_SERVER = Keyspace()
job_key, key_of = ONE_SERVER.job_key, ONE_SERVER.key_of


def lua_keys() -> str:
    """Return the Lua table ``key``: a string for each key, and a function for each key with ``per``.

    ``key.enter`` sets the strings to the keys of a job.
    """
    of_job = [key.name for key in JOB_KEYS if not key.per and key.name not in KEPT_BY_RESET]
    of_query = [key.name for key in JOB_KEYS if key.per == "query"]
    lines = [
        f"local key = {{wake = '{WAKE}', of_job = {_list(of_job)}, of_query = {_list(of_query)}}}",
        *(
            f"function key.{key.name}({key.per}) return key.job .. ':{key.name}:' .. {key.per} end"
            for key in JOB_KEYS
            if key.per
        ),
        "function key.enter(keys)",
        "if keys[1] == key.job then return end",
        "key.job, key.sweeps, key.jobs, key.deleted, key.incarnation, key.attendance = unpack(keys, 1, 6)",
        "key.name = string.match(keys[1], '{(.*)}$') or string.match(keys[1], '}/(.*)$')",  # or the tag is a bucket
        *(f"key.{name} = key.job .. ':{name}'" for name in KEPT_BY_RESET),
        "for _, name in ipairs(key.of_job) do key[name] = key.job .. ':' .. name end",
        "end",
        "function key.job_named(name)",  # a job of the same bucket
        "local suffix = string.sub(key.job, -1) == '}' and '}' or ''",
        "return string.sub(key.job, 1, #key.job - #key.name - #suffix) .. name .. suffix",
        "end",
    ]
    return "\n".join(lines) + "\n"


def _list(names: list[str]) -> str:
    return "{" + ", ".join(f"'{name}'" for name in names) + "}"
