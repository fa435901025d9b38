"""A client of server-sent events."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import EventSource


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: dict[str, Any]


class Events:
    """The events of a response; ``last_id`` is the id from which a client resumes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self._events, self.last_id = response, EventSource(response).iter_sse(), ""

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.last_id = event.id
            if event.data:
                yield Event(event.id, event.event, event.json())

    def take(self, number: int) -> list[Event]:
        """Return the next ``number`` events."""
        found: list[Event] = []
        for event in self:
            found.append(event)
            if len(found) == number:
                break
        return found

    def until(self, watermark: int) -> list[Event]:
        """Return the events up to the emission of ``watermark``, inclusive."""
        found: list[Event] = []
        for event in self:
            found.append(event)
            if event.name == "emission" and event.data["watermark"] == watermark:
                break
        return found


@contextmanager
def watching(url: str, after: str | None = None, key: str | None = None, **parameters: Any) -> Iterator[Events]:
    """Watch a job; ``url`` is its address at the coordinator."""
    headers = {} if after is None else {"Last-Event-ID": after}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    with (
        httpx.Client(timeout=60) as http,
        http.stream("GET", f"{url}/watermark:watch", headers=headers, params=parameters) as response,
    ):
        assert response.status_code == 200, response.read()
        yield Events(response)
