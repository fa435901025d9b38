"""The driver's HTTP client."""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from tidegate_spark.errors import InvalidUsage, refusal_of
from tidegate_spark.protocol.effects import NoAnswer, Response, Send

CONNECT_S = 5.0
SILENCE_S = 60.0
"""Maximum time in seconds between two lines of a stream. The coordinator sends a line at least every 15 seconds."""


class HttpTransport:
    """An HTTP client for one coordinator, with connections of its own.

    A transport can be pickled, because Spark Connect runs the hook in another process. That process opens its own
    connections.
    """

    def __init__(self, url: str, headers: dict[str, str], transport: httpx.BaseTransport | None = None) -> None:
        self._url, self._headers, self._transport = url, headers, transport
        self._client: httpx.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connections."""
        return {**self.__dict__, "_client": None}

    def send(self, request: Send) -> Response:
        """Send a request once.

        Raises:
            NoAnswer: If no answer arrives within ``request.timeout_s``.
        """
        try:
            response = self._connected().request(
                request.method,
                self._url + request.path,
                json=request.body,
                headers=dict(request.headers),
                timeout=httpx.Timeout(request.timeout_s, connect=min(CONNECT_S, request.timeout_s)),
            )
        except httpx.TransportError as error:
            raise NoAnswer(f"{self._url}: {error or type(error).__name__}") from error
        return Response(response.status_code, response.content, response.headers.get("Retry-After"))

    def lines(self, path: str, headers: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of an answer to GET as they arrive.

        Raises:
            Refused: If the coordinator refuses the request.
            NoAnswer: If the connection fails, or no line arrives for :data:`SILENCE_S`.
        """
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            with self._connected().stream("GET", self._url + path, headers=dict(headers), timeout=timeout) as response:
                if not response.is_success:
                    raise refusal_of(response.status_code, response.read())
                yield from response.iter_lines()
        except httpx.TransportError as error:
            raise NoAnswer(f"{self._url}: {error or type(error).__name__}") from error

    def _connected(self) -> httpx.Client:
        if self._client is None:
            # Loading the certificate authorities takes 30 ms; plain HTTP does not need them.
            secured = self._url.startswith("https:")
            self._client = httpx.Client(headers=self._headers, transport=self._transport, verify=secured)
            # Close the connections together with this transport: the program may run much longer.
            weakref.finalize(self, self._client.close)
        return self._client


def check_url(url: str) -> str:
    """Return a coordinator's address without a trailing slash; raise InvalidUsage if it is not an HTTP(S) address."""
    parts = httpx.URL(url)
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InvalidUsage(f"{url!r} is not the address of a coordinator: expected one like http://host:8000.")
    return url.rstrip("/")
