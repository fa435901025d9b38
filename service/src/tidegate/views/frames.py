"""The frames of a job, with their states, exclusions and generations."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from pydantic import Field

from tidegate.domain.errors import FrameNotFound, FramesNotDeclared
from tidegate.domain.frames import FrameState, FrameStatus
from tidegate.domain.prediction import Calibration, Predictor
from tidegate.domain.values import above
from tidegate.store.replies import FramesReply
from tidegate.views.reader import Reader
from tidegate.views.watermark import WatermarkState

FRAMES_AT_ONCE = 1000
"""Maximum number of frames that one call of the store reads."""
MAX_READS = 20
"""Maximum number of such calls for a page of frames in some states."""


class FrameList(WatermarkState):
    """A page of frames, latest first."""

    frames: list[FrameStatus] = Field(description="Frames, latest first.")
    next: int | None = Field(
        description="Value of `to` for the next page. Null on the last page.", examples=[1357549200000]
    )
    unfinished: int | None = Field(
        description="Start of the first frame that is not finished. Null if the job has no frame yet.",
        examples=[1357552800000],
    )
    finished: dict[str, int] = Field(
        description="Numbers of frames that were finished, by state, and of corrections (`corrected`).",
        examples=[{"complete": 411, "empty": 3, "corrected": 12}],
    )
    calibration: Calibration | None = Field(
        description="How often the bounds of the predictions held. Null if no frame had a bound yet, or if the page "
        "has no open frame."
    )


class FrameResult(WatermarkState):
    """A frame."""

    frame: FrameStatus = Field(description="The frame.")


async def read_frames(
    reader: Reader, job: str, first: int | None, to: int | None, states: Collection[FrameState], most: int
) -> FrameList:
    """Return a page of frames.

    Args:
        reader: Reader that issues the watermark token.
        job: The job.
        first: A time in the first frame; None: the first frame that the job keeps.
        to: Time before which the frames start; None: the last frame that has begun.
        states: States of the frames; empty for all states.
        most: Number of frames per page.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        FramesNotDeclared: If the job declares no frames.
    """
    found: list[FrameStatus] = []
    last = None if to is None else to - 1
    for _ in range(MAX_READS):
        page = await reader.store.reads.frames(job, first, last, FRAMES_AT_ONCE if states else most)
        if not page.is_declared:
            raise FramesNotDeclared
        found += [frame for frame in page.frames if not states or frame.state in states]
        following = page.next
        if len(found) > most:
            found = found[:most]
            following = found[-1].start
        if len(found) == most or following is None:
            break
        last = following - 1
    predictor = None
    if any(frame.state == "open" for frame in found):
        predictor = (await reader.store.reads.learned(job)).predictor()
    return FrameList(
        **reader.members(job, page.state),
        frames=predicted(found, predictor),
        next=following,
        unfinished=page.unfinished,
        finished=page.totals,
        calibration=None if predictor is None else predictor.calibration(),
    )


async def read_frame(reader: Reader, job: str, time: int) -> FramesReply:
    """Return the frame that contains a time, also if it has not begun.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        FramesNotDeclared: If the job declares no frames.
        FrameNotFound: If the frame is before the first one of the job, or after the end of its input.
    """
    return found_frame(await reader.store.reads.frame(job, time))


async def read_prediction(reader: Reader, job: str, frame: FrameStatus) -> FrameStatus:
    """Return a frame with its prediction, if it is open."""
    if frame.state != "open":
        return frame
    return predicted([frame], (await reader.store.reads.learned(job)).predictor())[0]


def predicted(frames: Sequence[FrameStatus], predictor: Predictor | None) -> list[FrameStatus]:
    """Return frames, the open ones with their predictions."""
    ends = [frame.end for frame in frames if frame.state == "open"]
    found = {} if predictor is None else dict(zip(ends, predictor.predictions(ends), strict=True))
    return [replace(frame, prediction=found.get(frame.end)) for frame in frames]


def found_frame(found: FramesReply) -> FramesReply:
    """Return the reply about one frame.

    Raises:
        FramesNotDeclared: If the job declares no frames.
        FrameNotFound: If the frame is before the first one of the job, or after the end of its input.
    """
    if not found.is_declared:
        raise FramesNotDeclared
    if not found.frames:
        raise FrameNotFound
    frame, state = found.frames[0], found.state
    if frame.state == "open" and state.complete and not above(state.watermark, frame.start):
        raise FrameNotFound
    return found
