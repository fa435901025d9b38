"""Commands about the frames of a job: frames, the consumers that follow them, and the wait for a frame."""

import json
import os
import signal
import subprocess
import time as clock
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import NOT_DELIVERED, Coordinator, segment
from tidegate.cli.following import FINISHED, Delivery, FrameFollower, iso_time, say
from tidegate.cli.options import (
    LOCAL_URL,
    AsJson,
    Job,
    Url,
    duration_ms,
    show,
    show_json,
    show_table,
    time,
    time_option,
)
from tidegate.times import MS, format_time
from tidegate.views.sentences import FRAME_STATES, exclusion_text, frame_sentence, plain_text, share_text

FrameStates = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help="Only frames in this state. Repeatable. With --follow: complete and complete_with_exclusions by default.",
    ),
]
FirstFrame = Annotated[
    int | None,
    typer.Option("--from", parser=time, metavar="TIME", help="Only frames from the one that contains this event time."),
]
Lease = Annotated[
    str,
    typer.Option(help="Time after which another process takes over if this one has died, such as 30s (1s to 1d)."),
]
LAST_PAUSE_MS = 60_000
ATTEMPTS = 10
"""Number of failures in a row of one delivery after which the program ends."""
END_S = 10.0
"""Time that a command has to end after SIGTERM, before it is killed."""
MAX_FRAME_BYTES = 100_000
"""Size of TIDEGATE_FRAME above which it names no substreams. Linux limits a variable to 128 KiB."""


def frames(
    job: Job,
    first: FirstFrame = None,
    to: Annotated[int | None, time_option("Show frames that start before this event time.")] = None,
    state: FrameStates = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of frames, latest first.")] = 24,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Deliver each generation of each finished frame once, in order, until Ctrl-C."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Like --follow, but end when all frames that are due are delivered.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="With --follow: run this shell command for each delivery, with the frame in TIDEGATE_* variables. "
            "Without it, print a line of JSON.",
        ),
    ] = None,
    consumer: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="NAME",
            help="With --follow: name of the consumer. The coordinator keeps its position, and processes with one name "
            "share its work.",
        ),
    ] = "default",
    lease: Lease = "30s",
    pause: Annotated[
        str,
        typer.Option(
            help="With --exec: pause after the first failure, such as 500ms or 5s. It doubles up to a minute."
        ),
    ] = "1s",
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show the frames of a job: which are complete, what was left out, and what has changed since.

    With --follow, deliver them: one line of JSON, or one run of a command, for each finished frame, and again for each
    correction. The coordinator keeps the position, so the command continues after a restart, on any machine. A delivery
    may be repeated after a crash, with the same TIDEGATE_KEY.

    A command that fails is run again. After ten failures in a row, tidegate exits with status 6, and the position stays
    before this frame.

    tidegate frames flights --follow --as load --exec 'load-hour "$TIDEGATE_FRAME_START"'
    """
    if unknown := [each for each in state or () if each not in FRAME_STATES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is no state: write one of {', '.join(FRAME_STATES)}", param_hint="--state"
        )
    if follow or once:
        if to is not None or "open" in (state or ()):
            raise typer.BadParameter("--follow delivers finished frames: omit --to, and the state open")
        follower = FrameFollower(Coordinator(url), job, consumer, state or FINISHED, first, duration_ms(lease))
        follower.deliver(_print if command is None else Command(command, duration_ms(pause)).run, once)
        return
    if command is not None:
        raise typer.BadParameter("--exec needs --follow or --once", param_hint="--exec")
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


def _print(delivery: Delivery) -> None:
    typer.echo(json.dumps(delivery.as_json()))


def variables(delivery: Delivery) -> dict[str, str]:
    """Return the environment variables that describe a delivery to a command."""
    frame, watermark = delivery.frame, delivery.frame["watermark"]
    text = json.dumps(frame)
    if len(text) > MAX_FRAME_BYTES:
        excluded = [{**each, "substreams": [], "partitions": []} for each in frame["exclusions"]]
        text = json.dumps({**frame, "exclusions": excluded, "silent": None})
    return {
        "TIDEGATE_JOB": delivery.job,
        "TIDEGATE_KEY": delivery.key,
        "TIDEGATE_FRAME_START": iso_time(frame["start"]),
        "TIDEGATE_FRAME_END": iso_time(frame["end"]),
        "TIDEGATE_FRAME_START_MS": str(frame["start"]),
        "TIDEGATE_FRAME_END_MS": str(frame["end"]),
        "TIDEGATE_GENERATION": str(delivery.number),
        "TIDEGATE_OUTPUTS": json.dumps(delivery.generation.get("outputs", [])),
        "TIDEGATE_STATE": frame["state"],
        "TIDEGATE_WATERMARK": "" if watermark is None else str(watermark),
        "TIDEGATE_FRAME": text,
    }


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command that runs for each delivery.

    Attributes:
        text: The command.
        pause_ms: Pause after its first failure.
    """

    text: str
    pause_ms: int

    def run(self, delivery: Delivery) -> None:
        """Run the command until it succeeds. Exit after ten failures."""
        pause_ms = self.pause_ms
        for attempt in range(1, ATTEMPTS + 1):
            status = self._run_once(variables(delivery))
            if status == 0:
                return
            ended = f"status {status}" if status > 0 else f"signal {-status}"
            failed = f"the command for {delivery.key} ended with {ended}, in attempt {attempt} of {ATTEMPTS}"
            if attempt == ATTEMPTS:
                say(f"{failed}. The position stays before it: correct the command, and start it again.")
                raise typer.Exit(NOT_DELIVERED)
            say(f"{failed}; the next attempt is in {pause_ms / MS:g} s.")
            clock.sleep(pause_ms / MS)
            pause_ms = min(2 * pause_ms, max(LAST_PAUSE_MS, self.pause_ms))

    def _run_once(self, given: Mapping[str, str]) -> int:
        """Return the exit status of the command, or the negative number of its signal.

        If this process is ended, the command with all of its children gets SIGTERM, and SIGKILL after ten seconds.
        """
        environment = os.environ | given
        process = subprocess.Popen(  # noqa: S602 - it is the user's own command
            self.text, shell=True, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return process.wait()
        finally:
            if process.returncode is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            return


def consumers(job: Job, url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """Show the programs that follow the frames of a job: how far they are, and which process works."""
    found = Coordinator(url).job("GET", job, "/consumers")
    if as_json:
        show_json(found)
        return
    if not found["consumers"]:
        show(f"{job}: no consumers.")
        return
    rows = []
    for each in found["consumers"]:
        position = each["position"]
        delivered = ("-", "-") if position is None else (format_time(position["start"]), str(position["generation"]))
        works = "-" if each["lease_until_ms"] is None else format_time(each["lease_until_ms"])
        rows.append((each["consumer"], *delivered, format_time(each["moved_ms"]), each["owner"], works))
    show_table(("name", "last frame", "generation", "delivered", "process", "lease until"), rows)


def forget_consumer(
    job: Job,
    consumer: Annotated[str, typer.Argument(help="Name of the consumer.")],
    reason: Annotated[str, typer.Option(help="Reason for the action. The history keeps it.")] = "",
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Remove the position of a program that follows the frames. Under its name, all frames are delivered again."""
    path = f"/consumers/{segment('consumer', consumer)}"
    result = Coordinator(url).job("DELETE", job, path, params={"reason": reason})
    if as_json:
        show_json(result)
    else:
        show(f"{consumer} of {job}: forgotten.")


def show_frame(result: Mapping[str, Any]) -> None:
    """Show one frame and what was left out of it."""
    show(plain_text(frame_sentence(result["frame"], result["written_watermark"]), result["now_ms"]))
    for exclusion in result["frame"]["exclusions"]:
        show(f"  without {exclusion_text(exclusion)}")
