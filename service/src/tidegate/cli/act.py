"""What operators do, each with a reason that is kept on record."""

import json
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import HERE, AsJson, Coordinator, Url
from tidegate.cli.look import Job, told_of
from tidegate.cli.output import tell
from tidegate.cli.times import duration_s, moment
from tidegate.times import MS

Names = Annotated[list[str], typer.Argument(help="The substreams.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept with the record.", prompt="Reason")]
OfQuery = Annotated[
    str | None,
    typer.Option(
        "--query",
        help="The query of the substreams; needed only where several have them. --query '' names those that were "
        "reported without batches.",
    ),
]


def declare(
    job: Job,
    names: Names,
    reason: Reason,
    query: Annotated[str, typer.Option(help="The query; without, reports without batches.")] = "",
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Make substreams known, so that they hold the watermark from the start."""
    _substreams(url, job, ":declare", names, query, reason, as_json)


def idle(
    job: Job, names: Names, reason: Reason, query: OfQuery = None, url: Url = HERE, as_json: AsJson = False
) -> None:
    """Wait for substreams no longer, until something comes of them."""
    _substreams(url, job, "/substreams:idle", names, query, reason, as_json)


def done(
    job: Job, names: Names, reason: Reason, query: OfQuery = None, url: Url = HERE, as_json: AsJson = False
) -> None:
    """Substreams have ended, for good."""
    _substreams(url, job, "/substreams:done", names, query, reason, as_json)


def evict(
    job: Job, names: Names, reason: Reason, query: OfQuery = None, url: Url = HERE, as_json: AsJson = False
) -> None:
    """Forget substreams; they may come back as new ones."""
    _substreams(url, job, "/substreams:evict", names, query, reason, as_json)


def retire(
    job: Job,
    query: Annotated[str, typer.Argument(help="The query that has ended.")],
    reason: Reason,
    successor: Annotated[
        str | None, typer.Option(help="The query that goes on with its substreams; itself: on another checkpoint.")
    ] = None,
    evict: Annotated[bool, typer.Option("--evict", help="Nobody goes on with them: forget them.")] = False,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """End a query: it has ended, was renamed, or lost its checkpoint."""
    if (successor is None) != evict:
        raise typer.BadParameter("say --successor QUERY, or --evict")
    whose: dict[str, Any] = {"evict": True} if successor is None else {"successor": successor}
    _send(url, job, "POST", f"/queries/{query}:retire", {**whose, "reason": reason}, as_json)


def hold(
    job: Job,
    at_most: Annotated[str, typer.Option(help="The watermark goes no further: 2013-01-14T00:00Z, or milliseconds.")],
    reason: Reason,
    name: Annotated[str | None, typer.Option(help="What the hold is called; one is made up without.")] = None,
    lasts: Annotated[str | None, typer.Option(help="For how long: 30m, 2h; without, until it is released.")] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Keep the watermark at or below a value."""
    body = {"at_most": moment(at_most), "reason": reason, "hold": name}
    body["duration_ms"] = None if lasts is None else round(duration_s(lasts) * MS)
    _send(url, job, "POST", "/holds", body, as_json)


def release(
    job: Job,
    name: Annotated[str, typer.Argument(help="The hold.")],
    reason: Reason,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """End a hold."""
    told = Coordinator(url).job("DELETE", job, f"/holds/{name}", params={"reason": reason})
    _tell(told, as_json)


def complete(
    job: Job,
    reason: Reason,
    up_to: Annotated[
        str | None, typer.Option(help="The watermark goes there at least: 2013-01-14T00:00Z, or milliseconds.")
    ] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """The input has ended: all substreams are done."""
    body = {"reason": reason, "up_to": None if up_to is None else moment(up_to)}
    _send(url, job, "POST", ":complete", body, as_json)


def reopen(job: Job, reason: Reason, url: Url = HERE, as_json: AsJson = False) -> None:
    """Take an end of input back; never the watermark."""
    _send(url, job, "POST", ":reopen", {"reason": reason}, as_json)


def _substreams(url: str, job: str, path: str, names: list[str], query: str | None, reason: str, as_json: bool) -> None:
    if query is None:
        query = _query_of(Coordinator(url), job, names)
    _send(url, job, "POST", path, {"names": names, "query": query, "reason": reason}, as_json)


def _query_of(coordinator: Coordinator, job: str, names: list[str]) -> str:
    """Return the one query that has the substreams of these names; "" if one of them is not known.

    Raises:
        typer.BadParameter: If several queries have them, or each has only some.
    """
    owners: list[set[str]] = []
    for name in names:
        # A name may hold `*`, which finds others, too.
        rows = coordinator.job("GET", job, "/substreams", params={"name": name, "limit": 10_000})["substreams"]
        owners.append({row["query"] for row in rows if row["substream"] == name})
    if not all(owners):
        return ""  # the coordinator names what it does not know
    common = set.intersection(*owners)
    if len(common) == 1:
        return common.pop()
    listed = ", ".join(repr(owner) for owner in sorted(set.union(*owners)))
    raise typer.BadParameter(f"these substreams are of several queries: say --query, one of {listed}")


def _send(url: str, job: str, method: str, path: str, body: dict[str, Any], as_json: bool) -> None:
    _tell(Coordinator(url).job(method, job, path, json=body), as_json)


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    if told.get("applied") is False:
        tell("Nothing was changed: it was so already.")
    if "hold" in told:
        tell(f"The hold is called {told['hold']}.")
    tell(told_of(told))
