"""Ids, and the names of substreams within a job."""

import re

ID_CHARACTERS = "A-Za-z0-9._~-"
"""Characters of an id, as the content of a character class."""

_ANY, _NO_DOT = f"[{ID_CHARACTERS}]", "[A-Za-z0-9_~-]"
ID = rf"^({_NO_DOT}{_ANY}{{0,127}}|\.{_NO_DOT}{_ANY}{{0,126}}|\.\.{_ANY}{{1,126}})$"
"""Pattern of an id: the name of a job, a query, a checkpoint, a run or a hold.

``.`` and ``..`` are no ids. HTTP clients and proxies remove these segments from a path (RFC 3986, section 5.2.4), so
that a call about a hold ``..`` becomes a call about its job. The pattern has no lookahead, because pydantic and JSON
Schema do not support it.
"""
STORED_NAME = rf"^{_ANY}{{1,128}}$"
"""Pattern of a name that an older version may have stored. It may be a dot segment."""
NAME_OR_EMPTY = rf"^{_ANY}{{0,128}}$"
"""Pattern of a name in a query string, which no client normalizes. Older versions may have stored such a name."""
ID_RULE = "1 to 128 letters, digits and . _ ~ -, but not . or .. alone"

_VALID_ID = re.compile(ID)


def check_id(name: str) -> str:
    """Return an id.

    Raises:
        ValueError: If the name is not an id. The message says what an id is.
    """
    if _VALID_ID.fullmatch(name) is None:
        raise ValueError(f"must be {ID_RULE}")
    return name


SubstreamKey = tuple[str, str]
"""(query, substream)."""

DIRECT = ""
"""The query name of reports without batches."""

PLACEHOLDER = ""
"""The name of the substream that holds the watermark for an expected query until its substreams are known."""


def member(key: SubstreamKey) -> str:
    """Return ``<query>/<substream>``, the name of a substream within its job. Query names contain no slash."""
    return "/".join(key)
