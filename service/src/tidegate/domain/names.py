"""The names of substreams within a job."""

SubstreamKey = tuple[str, str]
"""(query, substream)."""

DIRECT = ""
"""The query name of reports without batches."""

PLACEHOLDER = ""
"""The name of the substream that holds the watermark for an expected query until its substreams are known."""


def member(key: SubstreamKey) -> str:
    """Return ``<query>/<substream>``, the name of a substream within its job. Query names contain no slash."""
    return "/".join(key)
