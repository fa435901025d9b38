"""Calls of the command line to a coordinator."""

import os
import re
import time as clock
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tidegate.domain.values import check_id
from tidegate.escapes import visible

if TYPE_CHECKING:
    import httpx
    from httpx_sse import ServerSentEvent

REFUSED, USAGE, NOT_REACHED, NO_ANSWER, WITH_EXCLUSIONS, NOT_DELIVERED = 1, 2, 3, 4, 5, 6
"""Exit statuses: refused by the coordinator, wrong command line, goal not reached, no answer, incomplete frame, and a
command for a frame that has failed too often."""
CONNECT_S, READ_S = 5.0, 60.0
RECONNECT_S = 1.0
PATIENCE_S = 600.0
"""Longest time without an answer, as in the Python client."""

_KEY = re.compile(r"[\x21-\x7e]+")


def segment(role: str, name: str) -> str:
    """Return an id, which is a segment of a path without further encoding.

    httpx removes the segments ``.`` and ``..`` from a path, so the call would concern something else.

    Raises:
        typer.BadParameter: If the name is not an id.
    """
    try:
        return check_id(name)
    except ValueError as error:
        raise typer.BadParameter(f"the name of the {role} {error}, but is {name!r}") from None


class NoAnswer(Exception):
    """Raised when no coordinator answers, or when it cannot serve calls at this time."""


class Refusal(Exception):
    """Raised when the coordinator refuses a call with a code that the caller expects.

    Args:
        code: Code of the error.
        problem: The problem document.
    """

    def __init__(self, code: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem['detail']} [{code}]")
        self.code, self.problem = code, problem


def try_again(error: NoAnswer, answered: float, said: str) -> str:
    """Show why there was no answer, unless the message was ``said`` before; return it.

    Exit if there was no answer since the monotonic time ``answered`` plus ten minutes.
    """
    text = visible(str(error))
    if text != said:
        typer.echo(f"tidegate: {text}", err=True)
    if clock.monotonic() - answered > PATIENCE_S:
        raise typer.Exit(NO_ANSWER) from None
    return text


class Coordinator:
    """The coordinator that a command calls, with the key in ``TIDEGATE_TOKEN``.

    The first call imports httpx, so that ``--help`` does not wait for the import.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def job(self, method: str, job: str, path: str = "", read_s: float = READ_S, **options: Any) -> Any:
        """Return the answer to a call about a job. Exit if the call is refused, or the coordinator does not answer."""
        return self.call(method, f"/v1/jobs/{segment('job', job)}{path}", read_s, **options)

    def query_of(self, job: str, substreams: Sequence[str]) -> str:
        """Return the only query that has all of these substreams; empty if a substream is unknown.

        Raises:
            typer.BadParameter: If several queries have the substreams, or no query has all of them.
        """
        queries: list[set[str]] = []
        for name in substreams:
            # A name can contain `*`, which matches other names too.
            rows = self.job("GET", job, "/substreams", params={"name": name, "limit": 10_000})["substreams"]
            queries.append({row["query"] for row in rows if row["substream"] == name})
        if not all(queries):
            return ""  # the coordinator's error names the unknown substreams
        common = set.intersection(*queries)
        if len(common) == 1:
            return common.pop()
        listed = ", ".join(repr(query) for query in sorted(set.union(*queries)))
        raise typer.BadParameter(f"several queries have these substreams; choose a query with --query: {listed}")

    def call(
        self,
        method: str,
        path: str,
        read_s: float = READ_S,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the answer to a call. Exit if the call is refused, or the coordinator does not answer.

        The call omits parameters that are None.
        """
        try:
            return self.attempt(method, path, read_s, params, json, headers)
        except NoAnswer as error:
            _fail(str(error), NO_ANSWER)

    def attempt(
        self,
        method: str,
        path: str,
        read_s: float = READ_S,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        expected: Collection[str] = (),
    ) -> Any:
        """Return the answer to a call. Exit if the call is refused, except with an ``expected`` code.

        Raises:
            NoAnswer: If the coordinator does not answer, or cannot serve the call at this time.
            Refusal: If the call is refused with an expected code.
        """
        import httpx

        given = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            with self._client(read_s) as http:
                response = http.request(method, path, params=given, json=json, headers=headers)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreached(error) from None
        return self._content(response, expected)

    def events(self, job: str, last_id: str | None, **parameters: Any) -> "Generator[ServerSentEvent]":
        """Yield each event of a job, until the connection ends. Exit if the call is refused.

        An event without data is a position, after records of other kinds. A reconnection continues there.

        Raises:
            NoAnswer: If the connection fails, or the coordinator cannot serve the call at this time.
        """
        import httpx
        from httpx_sse import EventSource

        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        path = f"/v1/jobs/{segment('job', job)}/watermark:watch"
        try:
            with self._client() as http, http.stream("GET", path, headers=headers, params=parameters) as response:
                if not response.is_success:
                    response.read()
                    self._content(response)
                yield from EventSource(response).iter_sse()
        except httpx.TransportError as error:
            raise self._unreached(error) from None

    def _unreached(self, error: Exception) -> NoAnswer:
        return NoAnswer(f"No answer from {self.url} ({error or type(error).__name__}); check TIDEGATE_URL.")

    def _client(self, read_s: float = READ_S) -> "httpx.Client":
        import httpx

        # Messages have neither the key nor credentials in the URL.
        if "@" in self.url:
            _fail("The URL has a user name or a password: remove them, and set TIDEGATE_TOKEN to a key.", USAGE)
        key = os.environ.get("TIDEGATE_TOKEN")
        if key and not _KEY.fullmatch(key):
            _fail("TIDEGATE_TOKEN has white space or is not ASCII: set it to a key, without a line break.", USAGE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(read_s, connect=CONNECT_S))
        except httpx.InvalidURL as error:
            _fail(f"{self.url!r} is not a URL ({error}); correct it.", USAGE)

    def _content(self, response: "httpx.Response", expected: Collection[str] = ()) -> Any:
        if response.is_success and not response.content:
            return {}
        try:
            content = response.json()
        except ValueError:
            answered = f"{self.url} answered {response.status_code} without JSON"
            raise NoAnswer(f"{answered}; set TIDEGATE_URL to a coordinator.") from None
        if not response.is_success:
            self._fail_refused(response, content, expected)
        return content

    def _fail_refused(self, response: "httpx.Response", content: Any, expected: Collection[str]) -> NoReturn:
        from httpx import codes

        status = response.status_code
        if not isinstance(content, dict) or "code" not in content:
            answered = f"{self.url} answered {status} without a problem document"
            raise NoAnswer(f"{answered}; set TIDEGATE_URL to a coordinator.")
        if content["code"] in expected:
            raise Refusal(content["code"], content)
        detail = content["detail"]
        if status == codes.UNAUTHORIZED:
            detail += f" Set TIDEGATE_TOKEN to a key of {self.url}."
        if content["code"] == "job_not_found":
            detail += " `tidegate jobs` lists the jobs."
        line = f"{detail} [{content['code']}]"
        if status in (codes.TOO_MANY_REQUESTS, codes.BAD_GATEWAY, codes.SERVICE_UNAVAILABLE, codes.GATEWAY_TIMEOUT):
            raise NoAnswer(line)
        _fail(line, REFUSED)


def _fail(line: str, status: int) -> NoReturn:
    typer.echo(f"tidegate: {visible(line)}", err=True)
    raise typer.Exit(status) from None
