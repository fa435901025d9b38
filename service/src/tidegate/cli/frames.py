"""Commands about the frames of a job: frames, and the wait for a frame."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, Url, show, show_json, show_table, time, time_option
from tidegate.times import format_time
from tidegate.views.sentences import FRAME_STATES, exclusion_text, frame_sentence, plain_text, share_text

FrameStates = Annotated[list[str] | None, typer.Option("--state", help="Show only frames in this state. Repeatable.")]


def frames(
    job: Job,
    first: Annotated[
        int | None,
        typer.Option(
            "--from", parser=time, metavar="TIME", help="Show frames from the one that contains this event time."
        ),
    ] = None,
    to: Annotated[int | None, time_option("Show frames that start before this event time.")] = None,
    state: FrameStates = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of frames, latest first.")] = 24,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show the frames of a job: which are complete, what was left out, and what has changed since."""
    if unknown := [each for each in state or () if each not in FRAME_STATES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is no state: write one of {', '.join(FRAME_STATES)}", param_hint="--state"
        )
    parameters = {"from": first, "to": to, "state": state, "limit": limit}
    page = Coordinator(url).job("GET", job, "/frames", params=parameters)
    if as_json:
        show_json(page)
        return
    if not page["frames"]:
        is_all = first is None and to is None and not state
        show(f"{job}: no frames yet." if is_all else f"{job}: no frame of the job is among these.")
        return
    columns = ("frame", "until", "state", "generation", "on time", "updated", "late", "finished", "excluded")
    show_table(columns, [_row(frame) for frame in page["frames"]])
    if calibration := page.get("calibration"):
        frames = f"{calibration['frames']:,} frame{'s' if calibration['frames'] != 1 else ''}"
        show(f"Of the last {frames}, {share_text(calibration['held'])} were complete by the time predicted for 95 %.")
    if page["next"] is not None:
        show(f"More frames: --to {page['next']}")


def _row(frame: Mapping[str, Any]) -> Sequence[str]:
    rows = frame["rows"]
    late = rows["dropped"] + rows["diverted"]
    more = "+" if frame["uncounted"] else ""
    return (
        format_time(frame["start"]),
        format_time(frame["end"]),
        FRAME_STATES[frame["state"]],
        "-" if frame["generation"] is None else str(frame["generation"]),
        f"{rows['on_time']:,}{more}",
        f"{rows['updated']:,}",
        f"{late:,}",
        _finished(frame),
        "; ".join(map(exclusion_text, frame["exclusions"])) or "-",
    )


def _finished(frame: Mapping[str, Any]) -> str:
    prediction = frame.get("prediction")
    if not prediction or (prediction["expected_ms"] is None and not prediction["overdue"]):
        return format_time(frame["finished_ms"])
    if prediction["overdue"]:
        return f"overdue since {format_time(prediction['latest_ms'])}"
    return f"expected {format_time(prediction['expected_ms'])}"


def show_frame(result: Mapping[str, Any]) -> None:
    """Show one frame and what was left out of it."""
    show(plain_text(frame_sentence(result["frame"], result["written_watermark"]), result["now_ms"]))
    for exclusion in result["frame"]["exclusions"]:
        show(f"  without {exclusion_text(exclusion)}")
