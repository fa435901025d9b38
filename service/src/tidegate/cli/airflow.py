"""The command ``tidegate notify airflow``: one run in Airflow for each generation of each frame.

A run has the key of its delivery as its id, so Airflow refuses a repeated request with 409, and a correction is another
run. The frame is the partition key of the run.
"""

import os
import re
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from tidegate.cli.coordinator import REFUSED, USAGE, Coordinator
from tidegate.cli.following import FINISHED, Delivery, FrameFollower, iso_time, say
from tidegate.cli.frames import FirstFrame, FrameStates, Lease
from tidegate.cli.options import LOCAL_URL, Job, Url, duration_ms, show
from tidegate.times import MS
from tidegate.views.sentences import FRAME_STATES

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
CONNECT_S, READ_S = 5.0, 60.0
AT_ONCE = 100
"""Number of Dags, or assets, that one call lists. Airflow allows no more by default."""
WITH_KEYS = (3, 2)
"""First version of Airflow whose runs have partition keys."""
WITH_API_2 = (3, 0)
"""First version of Airflow with ``/api/v2``."""

notify = typer.Typer(no_args_is_help=True, help="Tell another system about each generation of each frame.")


class AirflowUnready(Exception):
    """Raised when a request to Airflow fails, and may succeed later.

    Args:
        kind: Kind of the failure. The program prints one line for a failure that lasts.
        message: The failure, and what to do.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _refused(message: str) -> NoReturn:
    say(message)
    raise typer.Exit(REFUSED)


def partition_key(start: int) -> str:
    """Return the start of a frame as Airflow's mappers read it: in UTC with an offset, without milliseconds."""
    return datetime.fromtimestamp(start // MS, UTC).strftime("%Y-%m-%dT%H:%M:%S%z")


def conf_of(delivery: Delivery) -> dict[str, Any]:
    """Return the configuration of the run for a delivery, which tasks read as ``dag_run.conf``."""
    frame, generation = delivery.frame, delivery.generation
    return {
        "job": delivery.job,
        "key": delivery.key,
        "frame_start": iso_time(frame["start"]),
        "frame_end": iso_time(frame["end"]),
        "frame_start_ms": frame["start"],
        "frame_end_ms": frame["end"],
        "state": frame["state"],
        "generation": delivery.number,
        "reason": generation["reason"],
        "rows": generation["rows"],
        "watermark": frame["watermark"],
        "exclusions": frame["exclusions"],
        "outputs": generation["outputs"],
    }


@dataclass
class Airflow:
    """The REST API of an Airflow.

    Attributes:
        url: URL of its web server.
        environment: Environment variables, with AIRFLOW_TOKEN, or AIRFLOW_USERNAME and AIRFLOW_PASSWORD, or none.
    """

    url: str
    environment: Mapping[str, str]
    _version: tuple[int, int] | None = None
    _token: str | None = None

    def __post_init__(self) -> None:
        """Check the URL and the credentials."""
        self.url = self.url.rstrip("/")
        self._token = self.environment.get("AIRFLOW_TOKEN") or None
        self._user = self.environment.get("AIRFLOW_USERNAME", ""), self.environment.get("AIRFLOW_PASSWORD", "")
        if not re.match(r"https?://[^@]+$", self.url):
            say(
                f"{self.url!r} is no URL of an Airflow: write one such as https://airflow.example.com, and set "
                "AIRFLOW_USERNAME and AIRFLOW_PASSWORD for the login."
            )
            raise typer.Exit(USAGE)

    def version(self) -> tuple[int, int]:
        """Return the version of Airflow at the first call, such as (3, 3). Exit if the server is no Airflow."""
        if self._version is None:
            for path in ("/api/v2/version", "/api/v1/version"):
                answer = self._send("GET", path, {})
                if answer.is_success and (found := re.match(r"(\d+)\.(\d+)", _text(_json(answer), "version"))):
                    self._version = int(found[1]), int(found[2])
                    return self._version
                self._check_ready(answer)
            _refused(f"{self.url} has neither /api/v2/version nor /api/v1/version: set --airflow to an Airflow.")
        return self._version

    def dags_with(self, tag: str) -> list[str]:
        """Return the ids of all Dags with a tag."""
        found: list[str] = []
        while True:
            answer = self.call("GET", "/dags", {"tags": tag, "limit": AT_ONCE, "offset": len(found)})
            page = self._content(answer, "Dags")
            found += [dag["dag_id"] for dag in page["dags"]]
            if not page["dags"] or len(found) >= page["total_entries"]:
                return found

    def asset(self, name: str) -> int:
        """Return the id of an asset."""
        if self.version() < WITH_KEYS:
            _refused("--asset needs Airflow 3.2 or later: use --dag or --tag.")
        seen = 0
        while True:
            answer = self.call("GET", "/assets", {"name_pattern": name, "limit": AT_ONCE, "offset": seen})
            page = self._content(answer, "assets")
            for asset in page["assets"]:  # those whose names contain the name
                if asset["name"] == name:
                    return int(asset["id"])
            seen += len(page["assets"])
            if not page["assets"] or seen >= page["total_entries"]:
                break
        raise AirflowUnready(
            "asset", f"Airflow has no asset {name!r}: deploy a Dag that has it as an outlet, or correct --asset."
        )

    def start(self, path: str, what: str, delivery: Delivery) -> bool:
        """Start a run; return False if it exists.

        Args:
            path: Path of the request.
            what: What the run is of, for messages.
            delivery: The delivery.
        """
        body: dict[str, Any] = {"dag_run_id": delivery.key, "conf": conf_of(delivery)}
        if self.version() >= WITH_API_2:
            body["logical_date"] = None
        if self.version() >= WITH_KEYS:
            body["partition_key"] = partition_key(delivery.frame["start"])
        answer = self.call("POST", path, body=body)
        if answer.status_code == HTTPStatus.BAD_REQUEST and "partition_key" in body:  # the Dag is not partitioned
            del body["partition_key"]
            answer = self.call("POST", path, body=body)
        if answer.is_success:
            return True
        if answer.status_code == HTTPStatus.CONFLICT:
            return False
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise AirflowUnready(
                f"unknown {what}",
                f"Airflow does not know {what}: deploy it, or correct the name. Airflow finds a new file after some "
                f"minutes, or at once with `airflow dags reserialize`. The frame {delivery.key} waits.",
            )
        _refused(f"Airflow refuses a run of {what} ({_detail(answer)}): correct the Dag, and start the command again.")

    def call(
        self, method: str, path: str, parameters: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> "httpx.Response":
        """Return the answer to a call of the API.

        Exit if the credentials do not suffice.

        Raises:
            AirflowUnready: If Airflow does not answer, or cannot serve the call at this time.
        """
        base = "/api/v2" if self.version() >= WITH_API_2 else "/api/v1"
        answer = self._send(method, base + path, parameters or {}, body)
        if answer.status_code == HTTPStatus.UNAUTHORIZED and self._logs_in():
            self._token = None  # it has expired
            answer = self._send(method, base + path, parameters or {}, body)
        self._check_ready(answer)
        is_invalid = answer.status_code == HTTPStatus.FORBIDDEN and "JWT" in _detail(answer)
        if answer.status_code == HTTPStatus.UNAUTHORIZED or is_invalid:
            _refused(
                f"Airflow does not accept the credentials ({_detail(answer)}): set AIRFLOW_TOKEN to a valid token, or "
                "AIRFLOW_USERNAME and AIRFLOW_PASSWORD."
            )
        if answer.status_code == HTTPStatus.FORBIDDEN:
            _refused(
                f"The user of Airflow may not {method} {base}{path} ({_detail(answer)}): give it a role that may list "
                "Dags and create Dag runs, such as User, and with --asset materialize assets, such as Op."
            )
        return answer

    def _logs_in(self) -> bool:
        return bool(self._user[0]) and not self.environment.get("AIRFLOW_TOKEN")

    def _send(
        self, method: str, path: str, parameters: Mapping[str, Any], body: Mapping[str, Any] | None = None
    ) -> "httpx.Response":
        import httpx

        is_login = path == "/auth/token"
        is_older = self._version is not None and self._version < WITH_API_2
        if not is_login and self._version is not None and not is_older and self._logs_in() and self._token is None:
            self._log_in()
        headers = {} if is_login or self._token is None else {"Authorization": f"Bearer {self._token}"}
        auth = httpx.BasicAuth(*self._user) if is_older and self._logs_in() else None
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        try:
            with httpx.Client(base_url=self.url, headers=headers, auth=auth, timeout=timeout) as http:
                return http.request(method, path, params=parameters, json=body)
        except httpx.TransportError as error:
            message = f"No answer from {self.url} ({error or type(error).__name__}): check --airflow."
            raise AirflowUnready("no answer", message) from None
        except httpx.InvalidURL as error:
            _refused(f"{self.url!r} is not a URL ({error}): correct --airflow.")

    def _log_in(self) -> None:
        user, password = self._user
        answer = self._send("POST", "/auth/token", {}, {"username": user, "password": password})
        self._check_ready(answer)
        token = _text(_json(answer), "access_token")
        if not answer.is_success or not token:
            _refused(
                f"Airflow refuses the login of {user!r} ({_detail(answer)}): correct AIRFLOW_USERNAME and "
                "AIRFLOW_PASSWORD."
            )
        self._token = token

    def _check_ready(self, answer: "httpx.Response") -> None:
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS or answer.is_server_error:
            raise AirflowUnready(
                f"status {answer.status_code}",
                f"{self.url} cannot serve calls at this time ({_detail(answer)}): see the log of its API server.",
            )

    def _content(self, answer: "httpx.Response", what: str) -> dict[str, Any]:
        content = _json(answer)
        if not answer.is_success or not isinstance(content, dict) or "total_entries" not in content:
            raise AirflowUnready(f"list {what}", f"{self.url} does not list its {what} ({_detail(answer)}).")
        return content


def _json(answer: "httpx.Response") -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _text(content: Any, name: str) -> str:
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, str) else ""


def _detail(answer: "httpx.Response") -> str:
    """Return the status of an answer, and the error that it states."""
    content = _json(answer)
    stated = content.get("detail") if isinstance(content, dict) else None
    return f"{answer.status_code}: {str(stated)[:500]}" if stated else str(answer.status_code)


@dataclass(frozen=True)
class Notifier:
    """Starts the runs for each delivery. Exactly one of the targets is not None.

    Attributes:
        airflow: The Airflow.
        dag: Dag to start.
        tag: Tag of the Dags to start. Each delivery looks for them again.
        asset: Asset to materialize.
        sleep: Function that waits for a number of seconds.
    """

    airflow: Airflow
    dag: str | None = None
    tag: str | None = None
    asset: str | None = None
    sleep: Callable[[float], None] = clock.sleep

    def deliver(self, delivery: Delivery) -> None:
        """Start all runs of a delivery. Try again until Airflow has them."""
        pause_s, said = FIRST_PAUSE_S, ""
        while True:
            try:
                self._start(delivery)
                if said:
                    say(f"Airflow has the runs of {delivery.key} now.")
                return
            except AirflowUnready as error:
                if error.kind != said:
                    say(f"{error} Trying again.")
                said = error.kind
                self.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _start(self, delivery: Delivery) -> None:
        if self.asset is not None:
            path, what = f"/assets/{self.airflow.asset(self.asset)}/materialize", f"a Dag with the asset {self.asset!r}"
            self._start_one(path, what, delivery)
            return
        dags = [self.dag] if self.dag is not None else self.airflow.dags_with(self.tag or "")
        if not dags:
            raise AirflowUnready("no Dag", f"No Dag in Airflow has the tag {self.tag!r}: add it, or correct --tag.")
        for dag in dags:
            self._start_one(f"/dags/{dag}/dagRuns", f"the Dag {dag!r}", delivery)

    def _start_one(self, path: str, what: str, delivery: Delivery) -> None:
        is_new = self.airflow.start(path, what, delivery)
        show(f"{delivery.key}: {'started a run' if is_new else 'found the run'} of {what}.")


@notify.callback()
def _targets() -> None:
    """Tell another system about each generation of each frame."""


@notify.command()
def airflow(
    job: Job,
    airflow: Annotated[
        str,
        typer.Option(envvar="AIRFLOW_URL", help="URL of Airflow's API server, such as https://airflow.example.com."),
    ],
    consumer: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Name of the consumer; see `tidegate frames --follow`.")
    ] = "airflow",
    dag: Annotated[str | None, typer.Option(help="Dag to start.")] = None,
    tag: Annotated[str | None, typer.Option(help="Start all Dags with this tag, such as tidegate:flights.")] = None,
    asset: Annotated[str | None, typer.Option(help="Start the Dag that materializes this asset.")] = None,
    first: FirstFrame = None,
    state: FrameStates = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the runs of all frames that are due are started.")
    ] = False,
    lease: Lease = "30s",
    url: Url = LOCAL_URL,
) -> None:
    """Start one run in Airflow for each finished frame, and another one for each correction.

    The id of a run has the job, the start of the frame, and the generation, so no run is started twice. `dag_run.conf`
    has the frame. From Airflow 3.2 on, the start of the frame is the partition key of the run.

    AIRFLOW_TOKEN has a token, or AIRFLOW_USERNAME and AIRFLOW_PASSWORD a login. While Airflow does not answer, or does
    not know the Dag, the command tries again.

    tidegate notify airflow flights --airflow http://localhost:8080 --dag load_hour
    """
    if sum(target is not None for target in (dag, tag, asset)) != 1:
        raise typer.BadParameter("give either --dag, or --tag, or --asset")
    if dag is not None and not re.fullmatch(r"[\w.-]+", dag):
        raise typer.BadParameter(f"{dag!r} is no id of a Dag", param_hint="--dag")
    if unknown := [each for each in state or () if each not in FRAME_STATES or each == "open"]:
        raise typer.BadParameter(f"{unknown[0]!r} is no state of a finished frame", param_hint="--state")
    follower = FrameFollower(Coordinator(url), job, consumer, state or FINISHED, first, duration_ms(lease))
    follower.deliver(Notifier(Airflow(airflow, os.environ), dag, tag, asset).deliver, once)
