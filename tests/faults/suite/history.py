"""The history of a run: every call of every client, with the time at which it was sent and the answer that arrived.

Each client writes its calls to its own file: one line when it sends a call, and one line when the answer arrives. A
killed client loses no line. Times are monotonic and the same in all processes of a machine.
"""

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KINDS: tuple[tuple[str, str, str], ...] = (
    ("PUT", r"", "create"),
    ("GET", r"", "status"),
    ("POST", r":report", "report"),
    ("POST", r":declare", "declare"),
    ("GET", r"/watermark", "watermark"),
    ("GET", r"/substreams", "substreams"),
    ("GET", r"/queries", "queries"),
    ("GET", r"/frames", "frames"),
    ("GET", r"/history", "history"),
    ("PUT", r"/queries/(?P<query>[^/:]+)/batches/(?P<batch>\d+)", "begin"),
    ("POST", r"/queries/(?P<query>[^/:]+)/batches/(?P<batch>\d+):commit", "commit"),
    ("POST", r"/queries/(?P<query>[^/:]+):heartbeat", "heartbeat"),
)
_CALL = re.compile(r"/v1/jobs/(?P<job>[^/:?]+)(?P<rest>[^?]*)(\?.*)?")
_KEPT = (
    "watermark",
    "coalesced_watermark",
    "written_watermark",
    "now_ms",
    "state_epoch",
    "incarnation",
    "applied",
    "pinned_watermark",
    "replayed",
    "previous_batch_id",
    "previous_open",
    "code",
    "rows",
    "substreams",
    "frames",
    "records",
    "next",
)
"""Members of an answer that the checks read. The file keeps the whole answer."""
UNANSWERED = float("inf")


@dataclass(slots=True, eq=False)
class Call:
    """One call of a client, and the answer.

    Attributes:
        client: The client.
        kind: The kind of the call, such as ``report`` or ``begin``.
        sent: Monotonic time at which the client sent the call, in seconds.
        received: Monotonic time at which the answer arrived; infinite without an answer.
        status: HTTP status of the answer; None without an answer.
    """

    client: str
    kind: str
    job: str
    sent: float
    body: Mapping[str, Any] = field(default_factory=dict)
    query: str | None = None
    batch: int | None = None
    received: float = UNANSWERED
    status: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether the answer has a status 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_uncertain(self) -> bool:
        """Whether the coordinator may have performed the call, although no answer says so."""
        return self.status is None or self.status >= 500

    @property
    def run(self) -> str | None:
        """The run of the query that made the call."""
        run: str | None = (self.body.get("batch") or self.body).get("run_id")
        return run

    @property
    def claim(self) -> tuple[int, int] | None:
        """Incarnation and watermark of the token that the call carried; None without a watermark."""
        token = self.body.get("watermark_token")
        if not token:
            return None
        incarnation, watermark, _ = token.split(".", 2)
        return (int(incarnation), int(watermark)) if watermark else None

    def event_times(self) -> dict[str, int]:
        """Return the max event times that the call reports, by substream."""
        names = self.body.get("substreams") or []
        times = self.body.get("max_event_times") or []
        return {name: at for name, at in zip(names, times, strict=False) if at is not None}

    def shown(self, start: float) -> str:
        """Return the call as one line; ``start`` is the start of the run."""
        what = self.kind if self.query is None else f"{self.kind} {self.query}/{self.batch}"
        asked = {name: self.body[name] for name in ("pinned_watermark", "max_event_times") if name in self.body}
        claimed = "" if self.claim is None else f" token {self.claim[1]}"
        said = {name: value for name, value in self.answer.items() if name not in ("substreams", "rows", "frames")}
        until = "no answer" if self.status is None else f"{self.received - start:9.3f} s"
        return f"{self.sent - start:9.3f} .. {until}  {self.client}: {what} {asked}{claimed} -> {self.status} {said}"


def call_of(client: str, line: Mapping[str, Any]) -> Call:
    """Return the call of a line that records its sending."""
    found = _CALL.fullmatch(line["path"])
    assert found is not None, f"{line['path']} is not a path of a job"
    for method, pattern, kind in _KINDS:
        matched = re.fullmatch(pattern, found["rest"]) if method == line["method"] else None
        if matched is not None:
            names, body = matched.groupdict(), line["body"] or {}
            reference = body.get("batch") or {}
            kind = "stage" if reference else kind
            batch = names.get("batch") or reference.get("batch_id")
            query = names.get("query") or reference.get("query") or body.get("query") or None
            return Call(client, kind, found["job"], line["at"], body, query, None if batch is None else int(batch))
    raise ValueError(f"{line['method']} {line['path']} is not a call that the suite knows")


class Recorder:
    """The file to which one client writes its calls.

    Args:
        directory: Directory of the history.
        client: Name of the client; a process has one recorder for each of its clients.
    """

    def __init__(self, directory: Path, client: str) -> None:
        path = directory / f"{client}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock, self._number = threading.Lock(), 0

    def sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> int:
        """Record that a call is about to be sent, and return its number."""
        with self._lock:
            self._number += 1
            number = self._number
        self._write({"sent": number, "method": method, "path": path, "body": body})
        return number

    def answered(self, number: int, status: int, body: bytes) -> None:
        """Record the answer to a call."""
        try:
            answer = json.loads(body) if body else {}
        except ValueError:
            answer = {"code": "not JSON", "text": body[:200].decode(errors="replace")}
        self._write({"answered": number, "status": status, "answer": answer})

    def _write(self, line: Mapping[str, Any]) -> None:
        # One write of a whole line: a kill does not split it.
        os.write(self._file, (json.dumps({"at": time.monotonic(), **line}) + "\n").encode())


class History:
    """All calls of a run, read from the files of its clients.

    Attributes:
        calls: The calls, in no particular order.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to: dict[Path, int] = {}
        self._open: dict[tuple[str, int], Call] = {}
        self.calls: list[Call] = []

    def read(self) -> list[Call]:
        """Read the lines that were written since the last call; return the calls that were answered in them."""
        answered: list[Call] = []
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                content = file.read()
            complete = content[: content.rfind(b"\n") + 1]
            self._read_to[path] = self._read_to.get(path, 0) + len(complete)
            for line in complete.splitlines():
                self._take(path.stem, json.loads(line), answered)
        return answered

    def _take(self, client: str, line: Mapping[str, Any], answered: list[Call]) -> None:
        if "sent" in line:
            call = self._open[client, line["sent"]] = call_of(client, line)
            self.calls.append(call)
            return
        call = self._open.pop((client, line["answered"]))
        call.received, call.status = line["at"], line["status"]
        call.answer = {name: line["answer"][name] for name in _KEPT if name in line["answer"]}
        if call.kind == "status" or call.kind == "create":
            call.answer.pop("substreams", None)
        answered.append(call)

    def of(self, job: str) -> list[Call]:
        """Return the calls of a job, in the order in which they were sent."""
        return sorted((call for call in self.calls if call.job == job), key=lambda call: call.sent)
