"""Commands that change a job. The history keeps the reason for each command."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, Url, duration_option, time_option
from tidegate.cli.output import show, show_json
from tidegate.cli.views import job_sentence

Names = Annotated[list[str], typer.Argument(help="Names of the substreams.")]
Reason = Annotated[str, typer.Option(help="Reason for the action. The history keeps it.", prompt="Reason")]
QueryOfSubstreams = Annotated[
    str | None,
    typer.Option(
        "--query",
        help="Query of the substreams. Required only if several queries have substreams with these names. Empty for "
        "reports without batches.",
    ),
]


def declare(
    job: Job,
    names: Names,
    reason: Reason,
    query: Annotated[str, typer.Option(help="Query of the substreams. Omit it for reports without batches.")] = "",
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Declare substreams, so that they hold the watermark from the start."""
    _post(url, job, ":declare", {"names": names, "query": query, "reason": reason}, as_json)


def _substream_action(verb: str, effect: str) -> Callable[..., None]:
    """Return the command for an action on substreams; ``effect`` is its help text."""

    def act(
        job: Job,
        names: Names,
        reason: Reason,
        query: QueryOfSubstreams = None,
        url: Url = LOCAL_URL,
        as_json: AsJson = False,
    ) -> None:
        if query is None:
            query = _query_of(Coordinator(url), job, names)
        _post(url, job, f"/substreams:{verb}", {"names": names, "query": query, "reason": reason}, as_json)

    act.__name__, act.__doc__ = verb, effect
    return act


idle = _substream_action("idle", "Exclude substreams from the minimum until their next event.")
done = _substream_action("done", "Mark substreams as permanently ended.")
evict = _substream_action("evict", "Remove substreams. Evicted substreams can return as new substreams.")


def retire(
    job: Job,
    query: Annotated[str, typer.Argument(help="Name of the query.")],
    reason: Reason,
    successor: Annotated[
        str | None,
        typer.Option(
            help="Query that takes over the substreams. Name the query itself to continue on another checkpoint."
        ),
    ] = None,
    evict: Annotated[
        bool, typer.Option("--evict", help="Evict the substreams. Use it instead of --successor.")
    ] = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """End a query that was stopped or renamed, or has lost its checkpoint."""
    if (successor is None) != evict:
        raise typer.BadParameter("give either --successor QUERY or --evict")
    choice: dict[str, Any] = {"evict": True} if successor is None else {"successor": successor}
    _post(url, job, f"/queries/{query}:retire", {**choice, "reason": reason}, as_json)


def hold(
    job: Job,
    at_most: Annotated[int, time_option("Highest watermark, as 2013-01-14T00:00Z or Unix milliseconds.")],
    reason: Reason,
    name: Annotated[
        str | None, typer.Option(help="Name of the hold. By default, the coordinator chooses a name.")
    ] = None,
    lasts: Annotated[
        int | None, duration_option("Duration of the hold, such as 2h. By default, the hold does not expire.")
    ] = None,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Keep the watermark at or below a value."""
    body = {"at_most": at_most, "reason": reason, "hold": name, "duration_ms": lasts}
    _post(url, job, "/holds", body, as_json)


def release(
    job: Job,
    name: Annotated[str, typer.Argument(help="Name of the hold.")],
    reason: Reason,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Release a hold."""
    result = Coordinator(url).job("DELETE", job, f"/holds/{name}", params={"reason": reason})
    _show_result(result, as_json)


def complete(
    job: Job,
    reason: Reason,
    up_to: Annotated[
        int | None, time_option("Minimum of the final watermark, as 2013-01-14T00:00Z or Unix milliseconds.")
    ] = None,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Declare the end of the input: all substreams are done."""
    _post(url, job, ":complete", {"reason": reason, "up_to": up_to}, as_json)


def reopen(job: Job, reason: Reason, url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """Reopen a completed job, so that it accepts reports. The watermark does not move back."""
    _post(url, job, ":reopen", {"reason": reason}, as_json)


def _query_of(coordinator: Coordinator, job: str, names: list[str]) -> str:
    """Return the only query that has all of these substreams; empty if a substream is unknown.

    Raises:
        typer.BadParameter: If several queries have the substreams, or no query has all of them.
    """
    queries_by_name: list[set[str]] = []
    for name in names:
        # A name can contain `*`, which matches other names too.
        rows = coordinator.job("GET", job, "/substreams", params={"name": name, "limit": 10_000})["substreams"]
        queries_by_name.append({row["query"] for row in rows if row["substream"] == name})
    if not all(queries_by_name):
        return ""  # the coordinator's error names the unknown substreams
    common = set.intersection(*queries_by_name)
    if len(common) == 1:
        return common.pop()
    listed = ", ".join(repr(query) for query in sorted(set.union(*queries_by_name)))
    raise typer.BadParameter(f"several queries have these substreams; choose a query with --query: {listed}")


def _post(url: str, job: str, path: str, body: dict[str, Any], as_json: bool) -> None:
    _show_result(Coordinator(url).job("POST", job, path, json=body), as_json)


def _show_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(result)
        return
    if result.get("applied") is False:
        show("Nothing changed: the job already has this state.")
    if "hold" in result:
        show(f"Name of the hold: {result['hold']}")
    show(job_sentence(result))
