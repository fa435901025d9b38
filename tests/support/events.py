"""A client of server-sent events."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: dict[str, Any]


class Events:
    """The events of a response; ``last_id`` is the id from which a client resumes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self._lines, self.last_id = response, response.iter_lines(), ""

    def __iter__(self) -> Iterator[Event]:
        name, data = "", ""
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "id":
                self.last_id = value
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif not line:
                if data:
                    yield Event(self.last_id, name, json.loads(data))
                name, data = "", ""

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
