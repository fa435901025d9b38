"""The whole keyspace, described once: for Python, and as the head of every script.

All keys of a job share the hash tag ``{job}``. Scripts get the job's own key as ``KEYS[1]`` and name the others through
the functions below, which are written out from this table; ``KEYS[2]`` is a key beside them, :data:`SWEEPS`, that is
written in the same step so that no job in which time can change something is ever missed, and so is :data:`JOBS`, the
``KEYS[3]`` of those that create and delete.
"""

from dataclasses import dataclass
from typing import Literal

from tidegate.domain.config import DELAY_HALF_LIFE_MS
from tidegate.domain.journal import NAMES_KEPT, RECORDS_KEPT, RECORDS_KEPT_MS
from tidegate.domain.ledger import ENTRIES_KEPT, HOUR, HOURS_KEPT
from tidegate.domain.policy import MARGIN, MOST_WIDENING, SEEN_BEYOND, STEPS_AT_ONCE, SURPRISE, TIGHTENING
from tidegate.domain.sketch import FADES, GAMMA, HIGHEST_BUCKET, MOST_BUCKETS, MOST_WEIGHT, ROW, STEPS


@dataclass(frozen=True, slots=True)
class Key:
    """``suffix`` is what follows the job's key. Where there is one ``per`` query, limit or hour, it ends in that."""

    name: str
    suffix: str
    per: Literal["", "query", "limit", "hour"]
    holds: str


PREFIX = "tidegate:"
JOBS = PREFIX + "jobs"
"""Set of the names of all jobs; not of those that were deleted, which leave a tombstone under their own keys."""
KEYS = PREFIX + "keys"
"""Hash of API keys by id: the Unix time in seconds at which each was last used."""
PROBE = PREFIX + "probe"
"""Written to find out whether the server takes writes."""
SECRET = PREFIX + "secret"
"""The key of the tokens' MAC, where no secret is configured."""
SWEEPS = PREFIX + "sweeps"
"""Sorted set of the jobs in which time can change something, scored by when they are to be looked at."""
TOUCH_MS = 5000
"""A job that waits for time is looked at this often at least, so that a longer gap shows that nobody could."""
WAKE = PREFIX + "wake:"
"""Prefix of the channels on which it is announced that something happened to a job."""

# A substream is a member "<query>/<substream>"; ids hold no slash, so the first one separates.
JOB_KEYS = (
    Key("tops", "tops", "", "zset of all substreams: member -> top (-inf: none seen)"),
    Key("live", "live", "", "zset of the live substreams that do not follow the clock: member -> watermark"),
    Key("clocked", "clocked", "", "hash: member -> what is known of a substream that follows the clock"),
    Key("still", "still", "", "zset of the live ones of these whose reading stands still: member -> reading"),
    Key("drift", "drift", "", "zset of the others: member -> reading less the time it is read at"),
    Key("due", "due", "", "zset of the live ones of these: member -> time of its next change, if there is one"),
    Key("parked", "parked", "", "zset of the idle and done substreams: member -> watermark (-inf: none)"),
    Key("since", "since", "", "zset of all substreams: member -> processing time of the last change of its state"),
    Key("told", "told", "", "zset of those idle for another reason than silence: member -> since when"),
    Key("done", "done", "", "zset of the done substreams: member -> observed time of the last event"),
    Key("counts", "counts", "", "hash: '<class> <member>' -> rows accounted for"),
    Key("missing", "missing", "", "set of the expected queries that have shown no substream yet"),
    Key("contact", "contact", "", "zset: query -> observed time of its last word; not of those timed out or retired"),
    Key("delays", "delays", "", "hash: member -> sketch of its rows' delays; of all under pool and merged"),
    Key("lags", "lags", "", "hash: member -> lag that was learnt"),
    Key("hours", "hours", "", "zset of the hours of event time that rows are known of, scored by themselves"),
    Key("queries", "queries", "", "zset of the queries: query -> processing time of the first contact"),
    Key("owners", "owners", "", "set of the queries that have keys of their own: those above, and those declared for"),
    Key("begun", "begun", "", "zset of the open batches: query -> observed time of its begin (+inf: released)"),
    Key("open", "open", "", "zset of those that hold the watermark: query -> pin (-inf: none)"),
    Key("holds", "holds", "", "zset of the operators' holds: name -> at most"),
    Key("hold_expiry", "hold_expiry", "", "zset of those that expire: name -> when"),
    Key("hold_reasons", "hold_reasons", "", "hash: name -> reason"),
    Key("log", "log", "", "stream of what the machine did: see tidegate.domain.journal"),
    Key(
        "lagged",
        "lagged",
        "limit",
        "zset of the substreams that follow the clock: member -> what its lag alone gives it",
    ),
    Key("expiry", "expiry", "query", "zset of this query's live substreams: member -> observed time of the last event"),
    Key("quiet", "quiet", "query", "zset of this query's idle substreams: member -> observed time of the last event"),
    Key("query", "query", "query", "hash: the query's run, latest batch and idle clock"),
    Key("pins", "pins", "query", "hash: batch -> pin ('' : none)"),
    Key("pin_order", "pin_order", "query", "zset of the batches whose pins are kept, scored by batch"),
    Key("fenced", "fenced", "query", "zset of the runs that were replaced, scored by when"),
    Key("staged", "staged", "query", "zset of what the open batch reported: member -> top"),
    Key("staged_watermarks", "staged_watermarks", "query", "zset of what it reported ready-made: member -> watermark"),
    Key("staged_rows", "staged_rows", "query", "hash of what it counted: '<partition> <member>' -> rows"),
    Key(
        "staged_future", "staged_future", "query", "hash of what it left out as future: '<partition> <member>' -> rows"
    ),
    Key("staged_delays", "staged_delays", "query", "hash of the delays of its rows: '<partition> <member>' -> those"),
    Key("hour_rows", "hour_rows", "hour", "hash: member ('' : the job) -> rows of this hour"),
    Key("hour_late", "hour_late", "hour", "hash: 'updated|dropped|diverted <member>' -> what became of those of them"),
)


LEARNING = {
    "DELAY_HALF_LIFE_MS": DELAY_HALF_LIFE_MS,
    "HIGHEST_BUCKET": HIGHEST_BUCKET,
    "MARGIN": MARGIN,
    "MOST_BUCKETS": MOST_BUCKETS,
    "MOST_WEIGHT": MOST_WEIGHT,
    "MOST_WIDENING": MOST_WIDENING,
    "ROW": ROW,
    "SEEN_BEYOND": SEEN_BEYOND,
    "STEPS": STEPS,
    "STEPS_AT_ONCE": STEPS_AT_ONCE,
    "SURPRISE": SURPRISE,
    "TIGHTENING": TIGHTENING,
}
"""Numbers of the domain that sketches, and lags that are learnt from them, go by."""


def job_key(job: str) -> str:
    """The hash of a job: its config, its watermarks, its totals; or its tombstone."""
    return f"{PREFIX}{{{job}}}"


def wake_channel(job: str) -> str:
    return WAKE + job


def lua_names() -> str:
    """The head of every script: ``K.job`` and one function or string for each key."""
    lines = ["local K = {job = KEYS[1], sweeps = KEYS[2], jobs = KEYS[3], name = string.match(KEYS[1], '{(.*)}')}"]
    for key in JOB_KEYS:
        if key.per:
            lines.append(f"function K.{key.name}({key.per}) return KEYS[1] .. ':{key.suffix}:' .. {key.per} end")
        else:
            lines.append(f"K.{key.name} = KEYS[1] .. ':{key.suffix}'")
    lines.append(f"K.wake = '{WAKE}'")
    lines.append(f"K.records_kept, K.records_kept_ms = {RECORDS_KEPT}, {RECORDS_KEPT_MS}")
    lines.append(f"K.hour, K.hours_kept, K.entries_kept = {HOUR}, {HOURS_KEPT}, {ENTRIES_KEPT}")
    lines.append("K.learning = {" + ", ".join(f"{name} = {value!r}" for name, value in LEARNING.items()) + "}")
    lines.append(f"K.gamma, K.fades = {GAMMA!r}, {{{', '.join(map(repr, FADES))}}}")
    lines.append(f"K.names_kept, K.touch_ms = {NAMES_KEPT}, {TOUCH_MS}")
    return "\n".join(lines) + "\n"


def pins_key(job: str, query: str) -> str:
    """The pins of a query's batches."""
    return f"{job_key(job)}:pins:{query}"


def counts_key(job: str) -> str:
    """What became of the rows of each substream."""
    return f"{job_key(job)}:counts"


def hours_key(job: str) -> str:
    """The hours of event time that rows are known of."""
    return f"{job_key(job)}:hours"


def hour_rows_key(job: str, hour: int) -> str:
    """How many rows there are of one of them."""
    return f"{job_key(job)}:hour_rows:{hour}"


def hour_late_key(job: str, hour: int) -> str:
    """What became of those of them that were not on time."""
    return f"{job_key(job)}:hour_late:{hour}"


def tops_key(job: str) -> str:
    """The tops of all substreams."""
    return f"{job_key(job)}:tops"


def log_key(job: str) -> str:
    """The stream of what the machine did to a job."""
    return f"{job_key(job)}:log"
