"""Errors of views."""

from typing import ClassVar


class FrameInForce(Exception):
    """A window size for a job whose frame determines the windows."""

    code: ClassVar[str] = "frame_in_force"
    field: ClassVar[str] = "window_ms"

    def __init__(self) -> None:
        super().__init__("window_ms: the throttle of this job has a frame, which sets the window; omit window_ms.")
