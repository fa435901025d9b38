"""The coordinator as the command line sees it: calls, and what becomes of those that fail."""

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from tidegate.escapes import visible

if TYPE_CHECKING:
    import httpx

REFUSED, NOT_REACHED, NO_ANSWER = 1, 3, 4
"""Exit statuses: the coordinator refused; a wait came to its end; nobody answered. (2: the command line is wrong.)"""
CONNECT_S, READ_S = 5.0, 60.0

Url = Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="The coordinator.", rich_help_panel="Which coordinator")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: the answer as it came.")]
HERE = "http://127.0.0.1:8000"


class Coordinator:
    """Calls for one command; ``TIDEGATE_TOKEN`` is the key.

    httpx is imported by the first call: ``--help`` does not wait for it.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def _client(self) -> "httpx.Client":
        import httpx

        key = os.environ.get("TIDEGATE_TOKEN")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(READ_S, connect=CONNECT_S))
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            _fail(f"{self.url!r} is no address of a coordinator, or TIDEGATE_TOKEN no key ({error}).", 2)

    def job(self, method: str, job: str, path: str = "", read_s: float = READ_S, **sent: Any) -> Any:
        """One call; ends the program where it is refused, or nobody answers."""
        return self.call(method, f"/v1/jobs/{quote(job, safe='')}{path}", read_s, **sent)

    def call(self, method: str, path: str, read_s: float = READ_S, **sent: Any) -> Any:
        import httpx

        try:
            with self._client() as http:
                answer = http.request(method, path, timeout=httpx.Timeout(read_s, connect=CONNECT_S), **sent)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            _fail(f"No answer from {self.url} ({error or type(error).__name__}); is it TIDEGATE_URL?", NO_ANSWER)
        return self._read(answer)

    def events(self, job: str, last_id: str | None, **parameters: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Id, name and data of what happens; ends when the connection does.

        :raises httpx.TransportError: where it broke.
        """
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        path = f"/v1/jobs/{quote(job, safe='')}/watermark:watch"
        with self._client() as http, http.stream("GET", path, headers=headers, params=parameters) as response:
            if response.status_code != 200:
                response.read()
                self._read(response)
            event_id, name, data = last_id or "", "", ""
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    event_id = value
                elif field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif not line and data:
                    yield event_id, name, json.loads(data)
                    name, data = "", ""

    def _read(self, answer: "httpx.Response") -> Any:
        try:
            told = answer.json()
        except ValueError:
            _fail(f"{self.url} answered {answer.status_code}, and no JSON: it is no coordinator.", NO_ANSWER)
        if not answer.is_success:
            if not isinstance(told, dict) or "code" not in told:
                _fail(f"{self.url} answered {answer.status_code}, but not as a coordinator does.", NO_ANSWER)
            if answer.status_code == 401:
                told["detail"] += f" Set TIDEGATE_TOKEN to a key that {self.url} knows."
            away = answer.status_code in (502, 503, 504)
            _fail(f"{told['detail']} [{told['code']}]", NO_ANSWER if away else REFUSED)
        return told


def _fail(line: str, status: int) -> NoReturn:
    typer.echo(f"tidegate: {visible(line)}", err=True)
    raise typer.Exit(status) from None
