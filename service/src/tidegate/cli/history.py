"""Commands that follow a job over time: history, watch, wait."""

import json
import math
import re
import time as clock
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import (
    NOT_REACHED,
    RECONNECT_S,
    WITH_EXCLUSIONS,
    Coordinator,
    NoAnswer,
    segment,
    try_again,
)
from tidegate.cli.frames import show_frame
from tidegate.cli.options import (
    LOCAL_URL,
    AsJson,
    Force,
    Job,
    Url,
    duration_s,
    show,
    show_json,
    show_table,
    time_option,
)
from tidegate.cli.views import job_sentence, show_written
from tidegate.domain.history import Kind
from tidegate.times import format_time
from tidegate.views.sentences import holder, plain_text, record_details

Kinds = Annotated[list[Kind] | None, typer.Option("--kind", help="Show only records of this kind. Repeatable.")]
MAX_POLL_S = 60.0
ANSWER_S = 30.0
POLL_EACH_S = 0.5
"""Pause between two reads of committed offsets."""


def history(
    job: Job,
    as_of: Annotated[
        int | None, time_option("Show records up to this processing time, and the watermark at that time.")
    ] = None,
    since: Annotated[int | None, time_option("Show records from this processing time on.")] = None,
    kind: Kinds = None,
    before: Annotated[str | None, typer.Option(help="The `next` of the previous page, as --json prints it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of records, latest first.")] = 20,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show the history of a job, with actors and reasons."""
    parameters = {"as_of": as_of, "since": since, "kind": kind, "before": before, "limit": limit}
    page = Coordinator(url).job("GET", job, "/history", params=parameters)
    if as_json:
        show_json(page)
        return
    now_ms = page["now_ms"]
    if as_of is not None:
        show(f"At {format_time(as_of)} {_watermark_then(page['as_of'], now_ms)}.")
    rows = [
        (
            format_time(record["at_ms"]),
            record.get("action", record["kind"]),
            plain_text(record_details(record), now_ms),
        )
        for record in page["records"]
    ]
    show_table(("time", "event", ""), rows)


def _watermark_then(movement: Mapping[str, Any] | None, now_ms: int) -> str:
    if movement is None:
        return "the job had no watermark, or the history no longer contains the record"
    watermark = f"the watermark was {format_time(movement.get('watermark'))}"
    if not movement.get("held_by"):
        return f"{watermark}, and nothing held it"
    return f"{watermark}, held by {plain_text(holder({**movement, 'reason': movement['held_by']}), now_ms)}"


def watch(
    job: Job,
    kind: Kinds = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Continue after the record with this id, which --json shows with each record."),
    ] = None,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show new records of a job until its deletion or Ctrl-C. After a reconnection, show the missed records.

    With --after, first show the records since an earlier run of the command. If the history no longer keeps that
    record, the first event is a reset, with the state of the job.

    While no coordinator answers, the command tries again, for at most ten minutes. Then it exits with status 4.
    """
    if after is not None and not re.fullmatch(r"[0-9]{1,16}-[0-9]{1,19}", after):
        raise typer.BadParameter(f"{after!r} is no id of a record, such as 1795877701000-3", param_hint="--after")
    coordinator = Coordinator(url)
    coordinator.job("GET", job)
    last_id, answered, said = after, clock.monotonic(), ""
    while True:
        try:
            for event in coordinator.events(job, last_id, kind=kind or []):
                last_id, answered, said = event.id or last_id, clock.monotonic(), ""
                if not event.data:
                    continue
                if as_json:
                    typer.echo(json.dumps({"event": event.event, **event.json()}))
                else:
                    _show_event(event.event, event.json())
                if event.event == "deleted":
                    return
        except NoAnswer as error:
            said = try_again(error, answered, said)
        except KeyboardInterrupt:
            return
        clock.sleep(RECONNECT_S)


def _show_event(name: str, data: Mapping[str, Any]) -> None:
    if name == "deleted":
        show("The job was deleted.")
    elif name in ("state", "reset"):
        show(f"{format_time(data['now_ms'])}  {name:<12} {job_sentence(data)}")
    else:
        at_ms = data["at_ms"]
        show(f"{format_time(at_ms)}  {data.get('action', name):<12} {plain_text(record_details(data), at_ms)}")


def wait(
    job: Job,
    at_least: Annotated[
        int | None, time_option("Watermark to wait for, as 2013-01-14T00:00Z or Unix milliseconds.", round_up=True)
    ] = None,
    query: Annotated[str | None, typer.Option(help="Query whose committed offsets to wait for.")] = None,
    offsets: Annotated[
        str | None,
        typer.Option(
            help='End offsets of Kafka to wait for, in Spark\'s JSON: \'{"landings":{"0":120}}\'. The batches with all '
            "records below them are then committed."
        ),
    ] = None,
    frame: Annotated[int | None, time_option("Frame to wait for: its start, or another event time in it.")] = None,
    complete_only: Annotated[
        bool,
        typer.Option("--complete-only", help="Exit with status 5 if something was excluded from the frame."),
    ] = False,
    timeout: Annotated[str, typer.Option(help="Longest wait, such as 90s, 30m, 2h or 1d.")] = "1h",
    read: Annotated[
        bool,
        typer.Option("--read", help="Wait until the rows are read, in place of until all results are written."),
    ] = False,
    force: Force = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Wait until all results below a time are written, a frame is finished, or a query has committed offsets.

    The command exits with status 3 after the timeout. Results of windows are written after their rows are read; with
    --read, the command waits for the watermark only.

    A frame is finished when it is complete, complete with exclusions, or empty.

    While no coordinator answers, the command tries again, for at most ten minutes. Then it exits with status 4.

    tidegate wait flights --at-least 2013-01-14T00:00Z --timeout 2h && run-batch
    """
    given = [value for value in (at_least, offsets, frame) if value is not None]
    if len(given) != 1 or (query is None) != (offsets is None):
        raise typer.BadParameter("give either --at-least, or --frame, or --query and --offsets")
    if complete_only and frame is None:
        raise typer.BadParameter("--complete-only needs --frame")
    if read and at_least is None:
        raise typer.BadParameter("--read needs --at-least")
    coordinator = Coordinator(url)
    if frame is not None:
        _wait_for_frame(coordinator, job, frame, complete_only, timeout, force, as_json)
        return
    if offsets is None:
        path = f"/v1/jobs/{segment('job', job)}/watermark"
        result = _poll(
            coordinator, path, timeout, {"at_least": at_least, "read": read, "force": force}, itemgetter("reached")
        )
        text = job_sentence(result)
    else:
        wanted = _parse_offsets(offsets)
        path = f"/v1/jobs/{segment('job', job)}/queries/{segment('query', query or '')}/offsets"
        result = _poll(coordinator, path, timeout, None, lambda answer: not _uncommitted(answer, wanted))
        missing = _uncommitted(result, wanted)
        result["reached"] = not missing
        text = f"Not committed: {', '.join(missing)}." if missing else "All of these offsets are committed."
        if result["skipped"]:
            text += f" Skipped offsets, whose records were never read: {result['skipped']:,}."
    if as_json:
        show_json(result)
    else:
        show(text)
        if not result["reached"] and offsets is None and not read:
            show_written(result)
    if not result["reached"]:
        raise typer.Exit(NOT_REACHED)


def _wait_for_frame(
    coordinator: Coordinator, job: str, time: int, complete_only: bool, timeout: str, force: bool, as_json: bool
) -> None:
    """Wait for a frame. Exit with status 3 after the timeout, and 5 if something was excluded and may not be."""
    path = f"/v1/jobs/{segment('job', job)}/frames/{time}"
    parameters = {"force": force}
    result = _poll(
        coordinator, path, timeout, parameters, lambda answer: answer["frame"]["state"] != "open", limit="wait_s"
    )
    state = result["frame"]["state"]
    if as_json:
        show_json(result)
    else:
        show_frame(result)
    if state == "open":
        raise typer.Exit(NOT_REACHED)
    if complete_only and state == "complete_with_exclusions":
        raise typer.Exit(WITH_EXCLUSIONS)


def _poll(
    coordinator: Coordinator,
    path: str,
    timeout: str,
    parameters: Mapping[str, Any] | None,
    is_reached: Callable[[Mapping[str, Any]], bool],
    limit: str = "timeout_s",
) -> dict[str, Any]:
    """Return the first answer that is reached, or the last one before the timeout.

    With ``parameters``, each call waits at the coordinator, for the time in the parameter ``limit``. Without, the
    command calls again after ``POLL_EACH_S``.
    """
    deadline = clock.monotonic() + duration_s(timeout)
    answered, said = clock.monotonic(), ""
    while True:
        left_s = max(0.0, deadline - clock.monotonic())
        poll_s = min(left_s, MAX_POLL_S) if parameters else 0.0
        try:
            waiting = {**parameters, limit: poll_s} if parameters else {}
            result: dict[str, Any] = coordinator.attempt("GET", path, poll_s + ANSWER_S, waiting)
        except NoAnswer as error:
            # After the timeout, there is no other attempt.
            said = try_again(error, answered if left_s else -math.inf, said)
            clock.sleep(min(RECONNECT_S, left_s))
            continue
        answered, said = clock.monotonic(), ""
        if is_reached(result) or left_s == 0:
            return result
        if not parameters:
            clock.sleep(min(POLL_EACH_S, left_s))


def _parse_offsets(text: str) -> dict[str, int]:
    """Return end offsets by partition, from the JSON that Spark uses."""
    try:
        found = {
            f"{topic}/{int(number)}": offset for topic, of in json.loads(text).items() for number, offset in of.items()
        }
    except (ValueError, AttributeError):
        found = {}
    if not found or not all(type(offset) is int and offset >= 0 for offset in found.values()):
        raise typer.BadParameter(
            'expected JSON with an end offset for each partition, such as \'{"landings":{"0":120}}\'',
            param_hint="--offsets",
        )
    return found


def _uncommitted(answer: Mapping[str, Any], wanted: Mapping[str, int]) -> list[str]:
    """Return the partitions that are not committed up to the wanted end offsets, with the committed offsets."""
    committed = {row["partition"]: row["committed"] for row in answer["partitions"]}
    return [
        f"{name} (at {committed.get(name, 'no offset')}, not {offset})"
        for name, offset in wanted.items()
        if committed.get(name, -1) < offset
    ]
