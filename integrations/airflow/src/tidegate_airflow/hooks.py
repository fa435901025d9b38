"""The hook: connection to a coordinator, its reads, and the runs that are due."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tidegate_airflow import CONNECTION_FIELDS, CONNECTION_FORM
from tidegate_airflow.compat import AirflowException, AirflowFailException, BaseHook
from tidegate_airflow.runs import FINISHED, milliseconds, runs_of

TIMEOUT_S = 10.0
"""Default duration of a call, without the wait for a watermark or a frame."""
ATTEMPTS = 3
"""Number of attempts of one call, if the coordinator is unavailable."""
PAUSE_S = 1.0
"""Pause between two attempts."""
FRAMES_AT_ONCE, RECORDS_AT_ONCE = 1000, 100
"""Number of frames and of history records in one call."""
UNAVAILABLE = (429, 502, 503, 504)


class TidegateUnavailable(AirflowException):  # type: ignore[misc]  # Airflow is not installed where types are checked
    """The coordinator did not answer, or cannot serve the call at this time. A retry may succeed."""


class TidegateRefused(AirflowFailException):  # type: ignore[misc]
    """The coordinator refused the call. The task fails without retries, because each one would be refused."""


@dataclass(frozen=True)
class Server:
    """A coordinator, as a connection describes it.

    Attributes:
        conn_id: Id of the connection.
        url: Address of the coordinator, without a slash at the end.
        page: Address of the operators' page.
        key: API key; None without one.
        verify: Whether to check certificates, or the file with those to trust.
        timeout_s: Duration of a call, without its wait.
    """

    conn_id: str
    url: str
    page: str
    key: str | None
    verify: bool | str
    timeout_s: float

    @classmethod
    def of(cls, conn_id: str, connection: Any) -> "Server":
        """Return the coordinator of an Airflow connection.

        Raises:
            TidegateRefused: If the connection has no host, or an invalid extra.
        """
        host, extra = (connection.host or "").rstrip("/"), connection.extra_dejson
        if not host:
            raise TidegateRefused(
                f"The connection {conn_id!r} has no host: set the host to the coordinator's name, such as "
                "'coordinator', or to its address, such as 'https://tidegate.example.com'."
            )
        unknown = sorted(set(extra) - set(CONNECTION_FIELDS))
        if unknown:
            raise TidegateRefused(
                f"The extra of the connection {conn_id!r} has unknown members: {', '.join(unknown)}; "
                f"use {', '.join(CONNECTION_FIELDS)}."
            )
        if "://" not in host:
            host = f"{connection.schema or 'http'}://{host}"
        if connection.port:
            host = f"{host}:{connection.port}"
        verify = extra.get("verify")
        if verify in (None, "", True, "true", "True"):
            verify = True
        elif verify in (False, "false", "False"):
            verify = False
        try:
            timeout_s = float(extra.get("timeout") or TIMEOUT_S)
        except (TypeError, ValueError) as error:
            raise TidegateRefused(
                f"The extra of the connection {conn_id!r} has the timeout {extra['timeout']!r}: write a number of "
                "seconds."
            ) from error
        return cls(conn_id, host, (extra.get("page") or host).rstrip("/"), connection.password, verify, timeout_s)

    def options(self) -> dict[str, Any]:
        """Return the arguments of an HTTP client."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"base_url": self.url, "headers": headers, "verify": self.verify, "timeout": self.timeout_s}

    def answer(self, response: httpx.Response) -> dict[str, Any]:
        """Return the JSON object of an answer.

        Raises:
            TidegateUnavailable: If the call can be repeated.
            TidegateRefused: If the call must be changed.
        """
        try:
            found = response.json()
        except ValueError:
            found = None
        if response.status_code in UNAVAILABLE:
            detail = found["detail"] if isinstance(found, dict) and "detail" in found else response.reason_phrase
            raise TidegateUnavailable(
                f"The coordinator at {self.url} cannot serve the call: {detail} (status {response.status_code})."
            )
        if not isinstance(found, dict) or (response.is_error and "code" not in found):
            raise TidegateRefused(
                f"{response.url} is no address of a coordinator (status {response.status_code}): check the host, the "
                f"port and the scheme of the connection {self.conn_id!r}."
            )
        if response.is_error:
            raise TidegateRefused(
                f"The coordinator at {self.url} refused the call ({found['code']}): {found['detail']}"
                f"{self._advice(response.status_code, found['code'])}"
            )
        return found

    def _advice(self, status: int, code: str) -> str:
        """Return which setting of Airflow to change; empty if the coordinator's own text says it all."""
        if status == 401:
            return f" The key is the password of the connection {self.conn_id!r}."
        if status == 403:
            return f" Set another key as the password of the connection {self.conn_id!r}."
        if code in ("job_not_found", "job_deleted"):
            return f" Check the argument job, and the host of the connection {self.conn_id!r}."
        return ""

    def no_answer(self, error: httpx.TransportError) -> TidegateUnavailable:
        """Return the error for a connection that failed."""
        return TidegateUnavailable(
            f"No coordinator answered at {self.url} ({type(error).__name__}: {error}): start it, or correct the host "
            f"and the port of the connection {self.conn_id!r}."
        )


class TidegateHook(BaseHook):  # type: ignore[misc]
    """A connection to a Tidegate coordinator.

    The connection has a host (a name, or an address such as ``https://tidegate.example.com``), a port, a schema
    (``http`` or ``https``) and a key as its password. Its extra may have ``verify`` (a file with the certificates to
    trust), ``timeout`` (seconds) and ``page`` (the address of the operators' page for browsers).

    Each method raises :class:`TidegateUnavailable` if no coordinator answers, also after two further attempts, and
    :class:`TidegateRefused` if the coordinator refuses the call. Times are milliseconds.

    Args:
        tidegate_conn_id: Id of the connection.
    """

    conn_name_attr = "tidegate_conn_id"
    default_conn_name = "tidegate_default"
    conn_type = "tidegate"
    hook_name = "Tidegate"

    def __init__(self, tidegate_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.tidegate_conn_id = tidegate_conn_id
        self._server: Server | None = None

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the fields of the connection form. Airflow 3.2 and later use those of the provider instead."""
        from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
        from wtforms import StringField

        return {
            name: StringField(label, description=description, widget=BS3TextFieldWidget())
            for name, (label, description, _) in CONNECTION_FIELDS.items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the labels of the connection form. Airflow 3.2 and later use those of the provider instead."""
        return {**CONNECTION_FORM, "hidden_fields": [*CONNECTION_FORM["hidden_fields"], "extra"]}

    def server(self) -> Server:
        """Return the coordinator of the connection."""
        if self._server is None:
            self._server = Server.of(self.tidegate_conn_id, self.get_connection(self.tidegate_conn_id))
        return self._server

    def get_conn(self) -> httpx.Client:
        """Return an HTTP client with the address and the key of the connection."""
        return httpx.Client(**self.server().options())

    def page(self, job: str) -> str:
        """Return the address of a job's page."""
        return f"{self.server().page}/jobs/{job}"

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the coordinator answers and accepts the key, and a message."""
        try:
            self.read("/v1/jobs", limit=1)
        except (TidegateUnavailable, TidegateRefused) as error:
            return False, str(error)
        return True, f"The coordinator at {self.server().url} answers and accepts the key."

    def read(self, path: str, delay_s: float = 0, /, **parameters: Any) -> dict[str, Any]:
        """Return the answer of ``GET path``.

        Args:
            path: Path of the call.
            delay_s: Time for which the coordinator may delay its answer.
            parameters: Query parameters. Those that are None are left out.
        """
        server = self.server()
        given = {name: value for name, value in parameters.items() if value is not None}
        with self.get_conn() as http:
            for left in reversed(range(ATTEMPTS)):
                try:
                    return server.answer(http.get(path, params=given, timeout=server.timeout_s + delay_s))
                except httpx.TransportError as error:
                    failed = server.no_answer(error)
                except TidegateUnavailable as error:
                    failed = error
                if left:
                    self.log.warning("%s Another attempt follows in %s s.", failed, PAUSE_S)
                    time.sleep(PAUSE_S)
        raise failed

    def watermark(self, job: str, at_least: int | None = None, read: bool = False, wait_s: float = 0) -> dict[str, Any]:
        """Return the watermark of a job: the JSON object of ``GET /v1/jobs/{job}/watermark``.

        Args:
            job: The job.
            at_least: Time to wait for; ``reached`` in the answer says whether the job has reached it.
            read: Whether to wait for the watermark (all rows are read) instead of the written watermark.
            wait_s: Longest wait in seconds.
        """
        asked = {"at_least": at_least, "timeout_s": wait_s, "read": "true" if read else None}
        return self.read(f"/v1/jobs/{job}/watermark", wait_s, **asked)

    def frame(self, job: str, start: int, wait_s: float = 0) -> dict[str, Any]:
        """Return the frame that contains a time: the member ``frame`` of ``GET /v1/jobs/{job}/frames/{start}``.

        Args:
            job: The job.
            start: The start of the frame, or another time in it.
            wait_s: Longest wait in seconds for the frame to be finished.
        """
        found: dict[str, Any] = self.read(f"/v1/jobs/{job}/frames/{start}", wait_s, wait_s=wait_s)["frame"]
        return found

    def frames(
        self, job: str, first: int | None = None, to: int | None = None, states: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the frames of a job, earliest first.

        Args:
            job: The job.
            first: A time in the first frame; None: the first frame that the coordinator keeps.
            to: Time before which the frames start; None: the last frame that has begun.
            states: States of the frames; empty: all states.
        """
        found: list[dict[str, Any]] = []
        following: int | None = to
        while True:
            page = self.read(
                f"/v1/jobs/{job}/frames", **{"from": first}, to=following, state=[*states], limit=FRAMES_AT_ONCE
            )
            found += page["frames"]
            following = page["next"]
            if following is None:
                return found[::-1]

    def due_runs(
        self,
        job: str,
        position: Mapping[str, Any] | None = None,
        first: int | str | None = None,
        states: Collection[str] = FINISHED,
        limit: int = 500,
    ) -> dict[str, Any]:
        """Return the generations of frames after a position, as runs of a Dag, and the position after them.

        The result has the members ``runs`` (arguments of Airflow's ``TriggerDagRunOperator``) and ``position``, a JSON
        object. Save the position after the runs are started. A call that is repeated with the same position returns the
        same run ids, so Airflow refuses those that exist.

        Args:
            job: The job.
            position: Position of the last call; None for the first call.
            first: A time in the first frame of the first call; None: the first frame that the coordinator keeps.
            states: States of the frames.
            limit: Number of runs at which the result ends. It may be exceeded by the generations of one frame.
        """
        at = dict(position or {})
        if at.get("after") is None and "from" not in at:
            # The record is read before the frames are, so it cannot be later than what they contain.
            at = {"after": self._newest_record(job), "from": None if first is None else milliseconds("first", first)}
        runs: list[dict[str, Any]] = []
        if "from" in at:
            frames = self.frames(job, at["from"], at.get("to"), states)
            for frame in frames:
                runs += runs_of(job, frame)
                if len(runs) >= limit and frame is not frames[-1]:
                    return {"runs": runs, "position": at | {"from": frame["end"]}}
            return {"runs": runs, "position": {"after": at["after"]}}
        records = self._records_after(job, at["after"])
        if records is None:
            self.log.warning("The history of %s no longer has the record %s: reading all frames.", job, at["after"])
            return self.due_runs(job, first=first, states=states, limit=limit)
        after = at["after"]
        for record in records:
            if record["count"] > limit and not runs:
                span = {"after": record["id"], "from": record["start"], "to": record["end"]}
                return self.due_runs(job, span, states=states, limit=limit)
            if len(runs) + record["count"] > limit and runs:
                break
            for frame in self.frames(job, record["start"], record["end"], states):
                runs += runs_of(job, frame, record["generation"])
            after = record["id"]
        return {"runs": runs, "position": {"after": after}}

    def _newest_record(self, job: str) -> str | None:
        """Return the id of the newest record about frames; None if there is none."""
        records = self.read(f"/v1/jobs/{job}/history", kind="frame", limit=1)["records"]
        return records[0]["id"] if records else None

    def _records_after(self, job: str, after: str | None) -> list[dict[str, Any]] | None:
        """Return the records about frames after a record, earliest first; None if the history lacks some of them."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        while True:
            page = self.read(f"/v1/jobs/{job}/history", kind="frame", before=before, limit=RECORDS_AT_ONCE)
            for record in page["records"]:
                if record["id"] == after:
                    return found[::-1]
                found.append(record)
            before = page["next"]
            if before is None:
                return None
