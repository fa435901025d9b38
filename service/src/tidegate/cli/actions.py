"""Commands that change a job. The history keeps the reason for each command."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator, segment
from tidegate.cli.options import LOCAL_URL, AsJson, Force, Job, Url, duration_option, show, show_json, time_option
from tidegate.cli.views import job_sentence
from tidegate.times import format_time

Substreams = Annotated[list[str], typer.Argument(help="Names of the substreams.")]
Query = Annotated[str, typer.Argument(help="Name of the query.")]
Hold = Annotated[str, typer.Argument(help="Name of the hold.")]
Reason = Annotated[str, typer.Option(help="Reason for the action. The history keeps it.", prompt="Reason")]
Confirm = Annotated[
    str, typer.Option(help="Name of the job, which confirms the action.", prompt="Name of the job, to confirm")
]
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
    substreams: Substreams,
    reason: Reason,
    query: Annotated[str, typer.Option(help="Query of the substreams. Omit it for reports without batches.")] = "",
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Declare substreams, so that they hold the watermark from the start."""
    _post(url, job, ":declare", {"substreams": substreams, "query": query, "reason": reason}, as_json)


def _substream_action(verb: str, effect: str) -> Callable[..., None]:
    """Return the command for an action on substreams; ``effect`` is its help text."""

    def act(
        job: Job,
        substreams: Substreams,
        reason: Reason,
        query: QueryOfSubstreams = None,
        url: Url = LOCAL_URL,
        as_json: AsJson = False,
    ) -> None:
        if query is None:
            query = Coordinator(url).query_of(job, substreams)
        _post(url, job, f"/substreams:{verb}", {"substreams": substreams, "query": query, "reason": reason}, as_json)

    act.__name__, act.__doc__ = verb, effect
    return act


idle = _substream_action("idle", "Exclude substreams from the minimum until their next event.")
done = _substream_action("done", "Mark substreams as permanently ended.")
evict = _substream_action("evict", "Remove substreams. Evicted substreams can return as new substreams.")


def restore(
    job: Job,
    substreams: Substreams,
    reason: Reason,
    watermarks: Annotated[
        list[int],
        time_option(
            "Watermark of a substream, as 2013-01-14T00:00Z or Unix milliseconds. Repeat it for each substream, in "
            "the same order."
        ),
    ],
    query: QueryOfSubstreams = None,
    force: Force = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Set the watermarks of substreams to values from another system."""
    if query is None:
        query = Coordinator(url).query_of(job, substreams)
    body = {"substreams": substreams, "watermarks": watermarks, "query": query, "reason": reason, "force": force}
    _post(url, job, ":restore", body, as_json)


def retire(job: Job, query: Query, reason: Reason, url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """End a query: abandon its open batch, and evict its substreams."""
    _post(url, job, f"/queries/{segment('query', query)}:retire", {"reason": reason}, as_json)


def hand_over(
    job: Job,
    query: Query,
    successor: Annotated[
        str,
        typer.Argument(
            help="Query that takes over the substreams. Name the query itself to continue on another checkpoint."
        ),
    ],
    reason: Reason,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Retire a query whose substreams its successor takes over, because it was renamed or has lost its checkpoint."""
    path = f"/queries/{segment('query', query)}:hand_over"
    _post(url, job, path, {"successor": successor, "reason": reason}, as_json)


def hold(
    job: Job,
    at_most: Annotated[int, time_option("Highest watermark, as 2013-01-14T00:00Z or Unix milliseconds.")],
    reason: Reason,
    hold: Annotated[
        str | None, typer.Option(help="Name of the hold. By default, the coordinator chooses a name.")
    ] = None,
    duration: Annotated[
        int | None, duration_option("Duration of the hold, such as 2h. By default, the hold does not expire.")
    ] = None,
    force: Force = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Keep the watermark at or below a value."""
    body = {"at_most": at_most, "reason": reason, "hold": hold, "duration_ms": duration, "force": force}
    _post(url, job, "/holds", body, as_json)


def release(
    job: Job,
    hold: Hold,
    reason: Reason,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Release a hold."""
    result = Coordinator(url).job("DELETE", job, f"/holds/{segment('hold', hold)}", params={"reason": reason})
    _show_result(result, as_json)


def complete(
    job: Job,
    reason: Reason,
    up_to: Annotated[
        int | None,
        time_option("Minimum of the final watermark, as 2013-01-14T00:00Z or Unix milliseconds.", round_up=True),
    ] = None,
    force: Force = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Declare the end of the input: all substreams are done."""
    _post(url, job, ":complete", {"reason": reason, "up_to": up_to, "force": force}, as_json)


def reopen(job: Job, reason: Reason, url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """Reopen a completed job, so that it accepts reports. The watermark does not move back."""
    _post(url, job, ":reopen", {"reason": reason}, as_json)


def reset(job: Job, confirm: Confirm, reason: Reason, url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """Delete all state of a job, including its watermark, and keep its configuration."""
    _check_confirmed(job, confirm)
    _post(url, job, ":reset", {"reason": reason}, as_json)


def delete(job: Job, confirm: Confirm, url: Url = LOCAL_URL) -> None:
    """Delete a job with its history. The coordinator refuses its reports until the job is created again."""
    _check_confirmed(job, confirm)
    Coordinator(url).job("DELETE", job)
    show(f"{job}: deleted.")


def configure(
    job: Job,
    config: Annotated[typer.FileText, typer.Argument(help="JSON file with the configuration; - for standard input.")],
    create: Annotated[bool, typer.Option("--create", help="Create the job. The command fails if it exists.")] = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Replace the configuration of a job, or create the job. The watermark does not move back."""
    try:
        document = json.load(config)
    except ValueError as error:
        raise typer.BadParameter(f"{config.name} is not JSON ({error}); write an object with a policy") from None
    condition = {"If-None-Match": "*"} if create else {"If-Match": "*"}
    result = Coordinator(url).job("PUT", job, json=document, headers=condition)
    _show_result(result, as_json)


def _check_confirmed(job: str, confirm: str) -> None:
    if confirm != job:
        raise typer.BadParameter(f"--confirm is {confirm!r}; type the name of the job, {job!r}")


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
    coalesced = result["coalesced_watermark"]
    if coalesced != result["watermark"] and not result["complete"]:
        show(f"The watermark moves to {format_time(coalesced)} when the open batches that hold it are committed.")
