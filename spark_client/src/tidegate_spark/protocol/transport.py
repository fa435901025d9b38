"""The driver's HTTP client."""

import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from tidegate_spark.errors import InvalidUsage, refusal_of
from tidegate_spark.protocol.effects import NoAnswer, Response, Send

HIGHEST_PORT = 65_535
_KEY = re.compile(r"[\x21-\x7e]+")

CONNECT_S = 5.0
SILENCE_S = 60.0
"""Maximum time in seconds between two lines of events. The coordinator sends a line at least every 15 seconds."""


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
            InvalidUsage: If the body cannot be sent as JSON.
        """
        client = self._connected()
        try:
            prepared = client.build_request(
                request.method,
                self._url + request.path,
                json=request.body,
                headers=dict(request.headers),
                timeout=httpx.Timeout(request.timeout_s, connect=min(CONNECT_S, request.timeout_s)),
            )
        except (TypeError, ValueError) as error:
            where = f"{request.method} {request.path.partition('?')[0]}"
            raise InvalidUsage(f"{where}: an argument cannot be sent as JSON ({error}); pass another value.") from error
        try:
            response = client.send(prepared)
        except httpx.TransportError as error:
            raise NoAnswer(f"{self._url}: {error or type(error).__name__}") from error
        return Response(response.status_code, response.content, response.headers.get("Retry-After"))

    def events(self, path: str, headers: Mapping[str, str]) -> Iterator[ServerSentEvent]:
        """Yield the server-sent events of an answer to GET as they arrive.

        Raises:
            Refused: If the coordinator refuses the request.
            NoAnswer: If the connection fails, or no line arrives for :data:`SILENCE_S`.
        """
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            with self._connected().stream("GET", self._url + path, headers=dict(headers), timeout=timeout) as response:
                if not response.is_success:
                    raise refusal_of(response.status_code, response.read())
                yield from EventSource(response).iter_sse()
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


def check_url(url: Any) -> str:
    """Return a coordinator's address without a trailing slash.

    Raises:
        InvalidUsage: If it is not an HTTP(S) address, or requests could not be sent to it. The message has neither
            credentials nor a query, which may be secret.
    """
    expected = "expected one like http://host:8000"
    if not isinstance(url, str):
        raise InvalidUsage(f"The address of the coordinator is of type {type(url).__name__}: {expected}.")
    without_credentials = url.rpartition("@")[2]
    shown = repr(re.split("[?#]", without_credentials)[0])
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        raise InvalidUsage(f"{shown} is not the address of a coordinator: {expected}.") from None
    valid_port = parts.port is None or 0 < parts.port <= HIGHEST_PORT
    if parts.scheme not in ("http", "https") or not parts.host or not valid_port or re.search(r"\s", url):
        raise InvalidUsage(f"{shown} is not the address of a coordinator: {expected}.")
    if parts.userinfo or url != without_credentials:
        raise InvalidUsage(
            f"The address {shown} has a user name or a password, which the coordinator does not read: remove them. "
            "Pass a key with connect(..., key=...), or set TIDEGATE_TOKEN."
        )
    if "?" in url or "#" in url:
        raise InvalidUsage(f"The address {shown} has a query or a fragment: remove the part from '?' or '#' on.")
    return url.rstrip("/")


def check_key(key: Any) -> str | None:
    """Return a bearer key; raise InvalidUsage, without the key, if a header cannot carry it."""
    if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
        found = f"is of type {type(key).__name__}"
        if isinstance(key, str):
            found = "begins or ends with white space" if key != key.strip() else "has spaces or is not ASCII"
        raise InvalidUsage(
            f"The key {found}: pass the key as `tidegate keys create` printed it. Remove the line break at the end of "
            "a file, as in open('key').read().strip()."
        )
    return key
