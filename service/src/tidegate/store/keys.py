"""The whole keyspace, described once: for Python, and as the head of every script.

All keys of a job share the hash tag ``{job}``. Scripts get the job's own key as ``KEYS[1]`` and name the others through
the functions below, which are written out from this table; ``KEYS[2]`` is a key beside them, :data:`SWEEPS`, that is
written in the same step so that no job in which time can change something is ever missed, and so is :data:`JOBS`, the
``KEYS[3]`` of those that create and delete.
"""

from dataclasses import dataclass

from tidegate.domain.journal import NAMES_KEPT, RECORDS_KEPT, RECORDS_KEPT_MS
from tidegate.domain.sketch import FADES, GAMMA


@dataclass(frozen=True, slots=True)
class Key:
    """``suffix`` is what follows the job's key; ``per_query`` keys end in ``:<query>`` as well."""

    name: str
    suffix: str
    per_query: bool
    holds: str


PREFIX = "tidegate:"
JOBS = PREFIX + "jobs"
"""Set of the names of all jobs; not of those that were deleted, which leave a tombstone under their own keys."""
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
    Key("tops", "tops", False, "zset of all substreams: member -> top (-inf: none seen)"),
    Key("live", "live", False, "zset of the live substreams that do not follow the clock: member -> watermark"),
    Key("clocked", "clocked", False, "hash: member -> what is known of a substream that follows the clock"),
    Key("still", "still", False, "zset of the live ones of these whose reading stands still: member -> reading"),
    Key("drift", "drift", False, "zset of the others: member -> reading less the time it is read at"),
    Key("due", "due", False, "zset of the live ones of these: member -> time of its next change, if there is one"),
    Key("parked", "parked", False, "zset of the idle and done substreams: member -> watermark (-inf: none)"),
    Key("since", "since", False, "zset of all substreams: member -> processing time of the last change of its state"),
    Key("told", "told", False, "zset of those idle for another reason than silence: member -> since when"),
    Key("done", "done", False, "zset of the done substreams: member -> observed time of the last event"),
    Key("counts", "counts", False, "hash: '<class> <member>' -> rows accounted for"),
    Key("missing", "missing", False, "set of the expected queries that have shown no substream yet"),
    Key(
        "contact", "contact", False, "zset: query -> observed time of its last word; not of those timed out or retired"
    ),
    Key("delays", "delays", False, "hash: member -> sketch of its rows' delays; of all under pool and merged"),
    Key("lags", "lags", False, "hash: member -> lag that was learnt"),
    Key("queries", "queries", False, "zset of the queries: query -> processing time of the first contact"),
    Key(
        "owners", "owners", False, "set of the queries that have keys of their own: those above, and those declared for"
    ),
    Key("begun", "begun", False, "zset of the open batches: query -> observed time of its begin (+inf: released)"),
    Key("open", "open", False, "zset of those that hold the watermark: query -> pin (-inf: none)"),
    Key("holds", "holds", False, "zset of the operators' holds: name -> at most"),
    Key("hold_expiry", "hold_expiry", False, "zset of those that expire: name -> when"),
    Key("hold_reasons", "hold_reasons", False, "hash: name -> reason"),
    Key("log", "log", False, "stream of what the machine did: see tidegate.domain.journal"),
    Key(
        "lagged", "lagged", True, "zset, by limit: live substream that follows the clock -> what its lag alone gives it"
    ),
    Key("expiry", "expiry", True, "zset of this query's live substreams: member -> observed time of the last event"),
    Key("quiet", "quiet", True, "zset of this query's idle substreams: member -> observed time of the last event"),
    Key("query", "query", True, "hash: the query's run, latest batch and idle clock"),
    Key("pins", "pins", True, "hash: batch -> pin ('' : none)"),
    Key("pin_order", "pin_order", True, "zset of the batches whose pins are kept, scored by batch"),
    Key("fenced", "fenced", True, "zset of the runs that were replaced, scored by when"),
    Key("staged", "staged", True, "zset of what the open batch reported: member -> top"),
    Key("staged_watermarks", "staged_watermarks", True, "zset of what it reported ready-made: member -> watermark"),
    Key("staged_rows", "staged_rows", True, "hash of what it counted: '<partition> <member>' -> rows"),
    Key("staged_future", "staged_future", True, "hash of what it left out as future: '<partition> <member>' -> rows"),
    Key("staged_delays", "staged_delays", True, "hash of the delays of its rows: '<partition> <member>' -> those"),
)


def job_key(job: str) -> str:
    """The hash of a job: its config, its watermarks, its totals; or its tombstone."""
    return f"{PREFIX}{{{job}}}"


def wake_channel(job: str) -> str:
    return WAKE + job


def lua_names() -> str:
    """The head of every script: ``K.job`` and one function or string for each key."""
    lines = ["local K = {job = KEYS[1], sweeps = KEYS[2], jobs = KEYS[3], name = string.match(KEYS[1], '{(.*)}')}"]
    for key in JOB_KEYS:
        if key.per_query:
            lines.append(f"function K.{key.name}(query) return KEYS[1] .. ':{key.suffix}:' .. query end")
        else:
            lines.append(f"K.{key.name} = KEYS[1] .. ':{key.suffix}'")
    lines.append(f"K.wake = '{WAKE}'")
    lines.append(f"K.records_kept, K.records_kept_ms = {RECORDS_KEPT}, {RECORDS_KEPT_MS}")
    lines.append(f"K.gamma, K.fades = {GAMMA!r}, {{{', '.join(map(repr, FADES))}}}")
    lines.append(f"K.names_kept, K.touch_ms = {NAMES_KEPT}, {TOUCH_MS}")
    return "\n".join(lines) + "\n"


def pins_key(job: str, query: str) -> str:
    """The pins of a query's batches."""
    return f"{job_key(job)}:pins:{query}"


def tops_key(job: str) -> str:
    """The tops of all substreams."""
    return f"{job_key(job)}:tops"


def log_key(job: str) -> str:
    """The stream of what the machine did to a job."""
    return f"{job_key(job)}:log"
