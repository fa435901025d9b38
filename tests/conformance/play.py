"""Playing a trace on one side."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.rig import Item, Side
from tests.conformance.traces import Json, Trace, policy
from tidegate.domain.config import Frame, FrameThrottle, JobConfig, MinStepThrottle, NoThrottle, Throttle
from tidegate.domain.errors import SubstreamDone
from tidegate.domain.policies import Reported

ONLY = "0"
"""Name of the substream in traces with a single substream."""


@dataclass(frozen=True)
class Difference:
    """The first step (from 0) at which a trace failed, with the expected and the actual result."""

    step: int
    expected: object
    got: object


def why_left_out(trace: Trace, side: Side) -> str | None:
    """Return the reason why a side cannot play a trace, or None if it can."""
    if side.exact_in_doubles and not trace.exact_in_doubles():
        return "numbers beyond 2^53 - 1"
    if "restore_mid_run" in trace.tags and not side.moves_back:
        return "a restore that moves the watermark back"
    return None


def play(file: str, trace: Trace, side: Side) -> Difference | None:
    """Play a trace; return the first difference, or None if the trace passes."""
    step = PLAYERS[file](trace, side)
    for number, operation in enumerate(trace.steps):
        got = step(operation)
        if got != operation["expect"]:
            return Difference(number, operation["expect"], got)
    return None


Player = Callable[[Json], Json]


def _policies(trace: Trace, side: Side) -> Player:
    rules, _ = policy(trace.config)
    began = trace.steps[0]["at_ms"]
    rig = side.rig(JobConfig(rules), began)
    rig.declare([ONLY], None, began)

    def step(operation: Json) -> Json:
        if operation["op"] == "event":
            rig.report({ONLY: operation["ts"]}, {}, operation["at_ms"])
        # A report's evaluation is capped at its event time. The trace expects the policy's watermark without the cap.
        rig.sweep(operation["at_ms"])
        return {"wm": rig.watermarks(operation["at_ms"])[ONLY]}

    return step


def _throttle(trace: Trace, side: Side) -> Player:
    config = trace.config
    throttle: Throttle = NoThrottle()
    if config["throttle"] == "min_step":
        throttle = MinStepThrottle(config["min_step"])
    elif config["throttle"] == "frame":
        throttle = FrameThrottle(config["window_size"], config["slide_by"], config["offset"])
    rig = side.rig(JobConfig(Reported(), throttle), 0)
    rig.declare([ONLY], None, 0)

    def step(operation: Json) -> Json:
        if operation["ideal"] is not None:
            rig.report({}, {ONLY: operation["ideal"]}, 0)
        return {"emit": _one(rig.items())}

    return step


def _coalescer(trace: Trace, side: Side) -> Player:
    retention = trace.config["max_retention_ms"]
    inputs = trace.config["inputs"]
    began = trace.steps[0]["at_ms"]
    rig = side.rig(JobConfig(Reported(), max_retention_ms=None if retention == -1 else retention), began)
    rig.declare([str(number) for number in range(inputs)], None, began)
    ended: set[str] = set()
    pending = False

    def step(operation: Json) -> Json:
        """Play one step. An idle message that follows a watermark is emitted at the next tick."""
        nonlocal pending
        now_ms, name = operation["at_ms"], str(operation.get("input"))
        match operation["op"]:
            case "tick":
                if pending:
                    pending = False
                    return {"emit": "idle"}
                rig.sweep(now_ms)
            case "wm":
                if not rig.report({}, {name: operation["value"]}, now_ms):
                    return {"error": "wm_not_monotonic"}
            case "event":
                rig.report({name: 0}, {}, now_ms)
            case "idle":
                try:
                    rig.idle(name, now_ms)
                except SubstreamDone:
                    return {"error": "wm_not_monotonic"}
            case "done":
                if not rig.done(name, now_ms):
                    return {"error": "input_already_done"}
                ended.add(name)
        items = rig.items()
        if len(items) == 2:
            pending = True
        elif items and len(ended) == inputs:
            pending = False
        return {"emit": items[0] if items else None}

    return step


def _event_time_mapper(trace: Trace, side: Side) -> Player:
    config = trace.config
    size = config["throttle_frame_size"]
    rules, top = policy(config["policy"])
    throttle: Throttle = FrameThrottle(size, size, config["throttle_frame_offset"]) if size else NoThrottle()
    rig = side.rig(
        JobConfig(rules, throttle, idle_timeout_ms=config["idle_timeout_ms"] or None, freezes_idle=True),
        trace.steps[0]["at_ms"],
    )
    partitions: list[str] = []
    made = 0
    is_said_idle = False

    def step(operation: Json) -> Json:
        nonlocal made, is_said_idle
        now_ms = operation["at_ms"]
        match operation["op"]:
            case "add_partitions":
                fresh = [str(made + number) for number in range(operation["count"])]
                made += len(fresh)
                partitions.extend(fresh)
                rig.declare(fresh, top, now_ms)
            case "remove_partition":
                # In the reference, a removed partition still counts towards the max watermark, like a done substream.
                rig.done(partitions.pop(operation["partition"]), now_ms)
            case "event":
                rig.report({partitions[operation["partition"]]: operation["ts"]}, {}, now_ms)
            case "poll":
                rig.sweep(now_ms)
            case "restore":
                rig.restore(partitions[operation["partition"]], operation["wm"], now_ms)
            case "snapshot":
                found = rig.watermarks(now_ms)
                return {"watermarks": [found[name] for name in partitions]}
        items = rig.items()
        is_said_idle = rig.said_idle or (is_said_idle and not partitions)
        if not partitions and not is_said_idle and rig.is_all_idle(now_ms):
            items, is_said_idle = [*items, "idle"], True  # a job whose substreams are all done says nothing
        # A frame size of 0 suppresses all watermarks. Jobs have no such throttle.
        return {"emit": [item for item in items if size or item == "idle"]}

    return step


def _sliding_window(trace: Trace, side: Side) -> Player:
    config = trace.config
    frame = Frame(config["window_size"], config["slide_by"], config["offset"])

    def step(operation: Json) -> Json:
        floor, higher = side.frame(frame, operation["ts"])
        return {"floor": floor, "higher": higher}

    return step


def _one(items: list[Item]) -> Item | None:
    watermarks = [item for item in items if item != "idle"]
    assert len(watermarks) <= 1
    return watermarks[0] if watermarks else None


PLAYERS: dict[str, Callable[[Trace, Side], Player]] = {
    "policies": _policies,
    "throttle": _throttle,
    "coalescer": _coalescer,
    "event_time_mapper": _event_time_mapper,
    "sliding_window": _sliding_window,
}
