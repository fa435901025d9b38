"""The whole keyspace, described once: for Python, and as the head of every script.

All keys of a job share the hash tag ``{job}``, so a job's script runs on one node of a cluster. Scripts get the job's
own key as ``KEYS[1]`` and name the others through the functions below, which are written out from this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """``suffix`` is what follows the job's key; ``per_query`` keys end in ``:<query>`` as well."""

    name: str
    suffix: str
    per_query: bool
    holds: str


PREFIX = "tidegate:"
JOBS = PREFIX + "jobs"
"""Set of the names of all jobs that were ever created and not forgotten; deleted ones leave a tombstone."""
SECRET = PREFIX + "secret"
"""The key of the tokens' MAC, where no secret is configured."""
WAKE = PREFIX + "wake:"
"""Prefix of the channels on which a job's emissions are announced."""

# A substream is a member "<query>/<substream>"; ids hold no slash, so the first one separates.
JOB_KEYS = (
    Key("tops", "tops", False, "zset of all substreams: member -> top (-inf: none seen)"),
    Key("live", "live", False, "zset of the live substreams: member -> watermark (-inf: none)"),
    Key("parked", "parked", False, "zset of the idle and done substreams: member -> watermark (-inf: none)"),
    Key("done", "done", False, "zset of the done substreams: member -> observed time of the last event"),
    Key("counts", "counts", False, "hash: '<class> <member>' -> rows accounted for"),
    Key("queries", "queries", False, "zset of the queries: query -> processing time of the first contact"),
    Key(
        "owners", "owners", False, "set of the queries that have keys of their own: those above, and those declared for"
    ),
    Key("open", "open", False, "zset of the open batches: query -> pin (-inf: none)"),
    Key("expiry", "expiry", True, "zset of this query's live substreams: member -> observed time of the last event"),
    Key("quiet", "quiet", True, "zset of this query's idle substreams: member -> observed time of the last event"),
    Key("query", "query", True, "hash: the query's run, latest batch and idle clock"),
    Key("pins", "pins", True, "hash: batch -> pin ('' : none)"),
    Key("pin_order", "pin_order", True, "zset of the batches whose pins are kept, scored by batch"),
    Key("fenced", "fenced", True, "zset of the runs that were replaced, scored by when"),
    Key("staged", "staged", True, "zset of what the open batch reported: member -> top"),
    Key("staged_rows", "staged_rows", True, "hash of what it counted: '<partition> <member>' -> rows"),
)


def job_key(job: str) -> str:
    """The hash of a job: its config, its watermarks, its totals; or its tombstone."""
    return f"{PREFIX}{{{job}}}"


def wake_channel(job: str) -> str:
    return WAKE + job


def lua_names() -> str:
    """The head of every script: ``K.job`` and one function or string for each key."""
    lines = ["local K = {job = KEYS[1]}"]
    for key in JOB_KEYS:
        if key.per_query:
            lines.append(f"function K.{key.name}(query) return KEYS[1] .. ':{key.suffix}:' .. query end")
        else:
            lines.append(f"K.{key.name} = KEYS[1] .. ':{key.suffix}'")
    lines.append(f"K.wake = '{WAKE}'")
    return "\n".join(lines) + "\n"
