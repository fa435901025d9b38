"""The sensors: waits for a frame or a watermark, in a worker or in the triggerer."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidegate_airflow.compat import (
    AirflowException,
    AirflowFailException,
    BaseOperatorLink,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from tidegate_airflow.hooks import TidegateHook
from tidegate_airflow.runs import milliseconds, text
from tidegate_airflow.triggers import TidegateTrigger


class TidegateJobLink(BaseOperatorLink):  # type: ignore[misc]
    """The link from a task to the job on the operators' page."""

    name = "Tidegate"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the job's page."""
        return TidegateHook(operator.tidegate_conn_id).page(operator.job)


class TidegateSensor(BaseSensorOperator):  # type: ignore[misc]
    """What both sensors do: poke once, then wait in the triggerer if they are deferrable.

    Args:
        job: The job.
        tidegate_conn_id: Id of the connection.
        deferrable: Whether to wait in the triggerer, without a worker. Default: Airflow's setting
            ``[operators] default_deferrable``.
        options: Arguments of Airflow's sensors, such as ``timeout``, ``poke_interval``, ``mode`` and ``retries``.
    """

    operator_extra_links = (TidegateJobLink(),)
    ui_color = "#e0e7ff"

    def __init__(
        self,
        *,
        job: str,
        tidegate_conn_id: str = TidegateHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.job, self.tidegate_conn_id, self.deferrable = job, tidegate_conn_id, deferrable

    def execute(self, context: Any) -> Any:
        """Wait, and return the frame or the watermark."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if not found.is_done:
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=self._trigger(), method_name="execute_complete", timeout=timeout)  # ends the execution
        return found.xcom_value

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Return the frame or the watermark of the trigger's event."""
        if "error" in event:
            raise (AirflowFailException if event["is_final"] else AirflowException)(event["error"])
        return self._result(event["answer"])

    def poke(self, context: Any) -> PokeReturnValue:
        """Return whether the sensor is done, and its result."""
        raise NotImplementedError

    def _trigger(self) -> TidegateTrigger:
        raise NotImplementedError

    def _result(self, answer: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _time(self, name: str, at: datetime | int | str) -> int:
        try:
            return milliseconds(name, at)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error


class TidegateFrameSensor(TidegateSensor):
    """A wait until a frame is finished: complete, complete with exclusions, or empty. Its result is the frame.

    Args:
        job: The job.
        time: The start of the frame, or another time in it (template): a datetime, a text in ISO 8601 with an offset,
            or Unix milliseconds.
        complete_only: Whether the task fails, without retries, if something was excluded from the frame. Such a frame
            never becomes complete.
        options: Arguments of :class:`TidegateSensor`.
    """

    template_fields: Sequence[str] = ("job", "time", "tidegate_conn_id")

    def __init__(self, *, job: str, time: datetime | int | str, complete_only: bool = False, **options: Any) -> None:
        super().__init__(job=job, **options)
        self.time, self.complete_only = time, complete_only

    def poke(self, context: Any) -> PokeReturnValue:
        """Return whether the frame is finished, and the frame."""
        hook = TidegateHook(self.tidegate_conn_id)
        frame = hook.frame(self.job, self._time("time", self.time))
        if frame["state"] == "open":
            self.log.info("The frame from %s of %s is open.", text(frame["start"]), self.job)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._checked(frame))

    def _trigger(self) -> TidegateTrigger:
        return TidegateTrigger(self.tidegate_conn_id, self.job, frame=self._time("time", self.time))

    def _result(self, answer: Mapping[str, Any]) -> Any:
        return self._checked(answer["frame"])

    def _checked(self, frame: Mapping[str, Any]) -> Any:
        if self.complete_only and frame["state"] == "complete_with_exclusions":
            raise AirflowFailException(
                f"The frame from {text(frame['start'])} to {text(frame['end'])} of {self.job} is complete with "
                f"exclusions: {', '.join(map(_named, frame['exclusions']))}. It never becomes complete. To process it "
                "nevertheless, set complete_only=False; what was left out makes a new generation when it arrives."
            )
        return frame


class TidegateWatermarkSensor(TidegateSensor):
    """A wait until all results below a time are written. Its result is the watermark.

    Args:
        job: The job.
        at_least: The time (template): a datetime, a text in ISO 8601 with an offset, or Unix milliseconds.
        read: Whether to wait only until the rows are read: their windows may not be written yet.
        options: Arguments of :class:`TidegateSensor`.
    """

    template_fields: Sequence[str] = ("job", "at_least", "tidegate_conn_id")

    def __init__(self, *, job: str, at_least: datetime | int | str, read: bool = False, **options: Any) -> None:
        super().__init__(job=job, **options)
        self.at_least, self.read = at_least, read

    def poke(self, context: Any) -> PokeReturnValue:
        """Return whether the watermark has reached the time, and the watermark."""
        hook = TidegateHook(self.tidegate_conn_id)
        answer = hook.watermark(self.job, self._time("at_least", self.at_least), self.read)
        if not answer["reached"]:
            watermark = self._result(answer)
            self.log.info("%s: watermark %s", self.job, "none yet" if watermark is None else text(watermark))
        return PokeReturnValue(is_done=answer["reached"], xcom_value=self._result(answer))

    def _trigger(self) -> TidegateTrigger:
        at_least = self._time("at_least", self.at_least)
        return TidegateTrigger(self.tidegate_conn_id, self.job, at_least=at_least, read=self.read)

    def _result(self, answer: Mapping[str, Any]) -> Any:
        return answer["watermark" if self.read else "written_watermark"]


def _named(exclusion: Mapping[str, Any]) -> str:
    """Return what an exclusion left out, such as ``departures/HNL (query_timeout_ms)``."""
    names = [each["substream"] for each in exclusion["substreams"]]
    names += exclusion.get("partitions", [])
    if exclusion["batch_id"] is not None:
        names.append(f"batch {exclusion['batch_id']} of {exclusion['query']}")
    return f"{', '.join(names[:5])}{', …' if exclusion['count'] > 5 else ''} ({exclusion['reason']})"
