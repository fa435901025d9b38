"""Valid requests for every operation of the OpenAPI document, made of its examples."""

import copy
import json
from random import Random
from typing import Any

from tests.fuzz.messages import Headers, Request, target_of
from tests.support.api import DOCUMENT

JOBS = [f"fuzzed-{number}" for number in range(6)]
IDS: dict[str, list[str]] = {
    "job": JOBS,
    "query": ["departures", "arrivals"],
    "batch": [str(number) for number in range(4)],
    "hold": ["audit"],
    "consumer": ["load"],
    "start": ["1357552800000"],
}
"""Values of the parameters in paths. There are few, so that calls meet the state of earlier ones."""
SUBSTREAMS = ["HNL", "ORD", "ANC", "JFK", "ß-ärger", "slow/one"]
RUNS = ["run-1", "run-1", "run-1", "run-2"]


class Operations:
    """The operations of the OpenAPI document.

    Args:
        key: The key of valid requests.
    """

    def __init__(self, key: str) -> None:
        document = json.loads(DOCUMENT.read_text())
        self._key = key
        self.all: dict[str, tuple[str, str, dict[str, Any]]] = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        }
        self._names = list(self.all)
        # Deletions and resets would leave the other calls without state.
        self._weights = [
            2 if name in ("delete", "reset", "complete", "hand_over", "retire") else 6 for name in self._names
        ]

    def headers(self) -> Headers:
        """Return the headers of a valid request."""
        return [(b"host", b"localhost"), (b"authorization", b"Bearer " + self._key.encode())]

    def any(self, random: Random) -> Request:
        """Return a valid request of any operation. The coordinator may refuse it because of the state of the job."""
        return self.one(random, random.choices(self._names, self._weights)[0])

    def with_body(self, random: Random) -> Request:
        """Return a valid request with a body."""
        return self.one(random, random.choice([name for name in self._names if "requestBody" in self.all[name][2]]))

    def one(self, random: Random, name: str) -> Request:
        """Return a valid request of an operation."""
        method, path, operation = self.all[name]
        query: dict[str, Any] = {}
        headers = self.headers()
        optional = random.random() < 0.4
        parameters = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
        chosen = random.choice(parameters)["name"] if parameters else None
        for parameter in operation.get("parameters", ()):
            label = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{label}}}", random.choice(IDS[label]))
            elif optional and label == chosen:
                if parameter["in"] == "query":
                    query[label] = parameter["example"]
                else:
                    headers.append((label.encode(), str(parameter["example"]).encode()))
        if name == "configure":
            condition = random.choice([(b"if-none-match", b"*"), (b"if-match", b"*")])
            headers = [each for each in headers if not each[0].startswith(b"if-")] + [condition]
        request = Request(name, method.encode(), target_of(path, query), headers)
        if "requestBody" in operation:
            document = copy.deepcopy(operation["requestBody"]["content"]["application/json"]["example"])
            request.document = _adapt(random, name, document)
            request.body = json.dumps(request.document).encode()
            request.headers.append((b"content-type", b"application/json"))
        return request


def _adapt(random: Random, name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Change an example so that it suits the state that the other requests create."""
    if "run_id" in document:
        document |= {"query_id": "checkpoint", "run_id": random.choice(RUNS)}
        document.pop("watermark_token")
    match name:
        case "configure":
            document["expected_queries"] = []
            document["max_future_skew_ms"] = None
        case "report":
            _adapt_report(random, document)
        case "begin" if random.random() < 0.9:
            document.pop("pinned_watermark")
        case "commit":
            document["reported"] = random.choice([None, None, 2])
            if random.random() < 0.3:
                document["rows"] = None
        case "heartbeat":
            document["after_batch"] = random.choice([None, 0, 1])
        case "declare" | "restore" | "idle" | "done" | "evict":
            _adapt_names(random, document)
        case "hand_over":
            document["successor"] = random.choice(IDS["query"])
    return document


def _adapt_report(random: Random, document: dict[str, Any]) -> None:
    document.pop("watermark_token")
    if random.random() < 0.4:
        document["batch"] |= {"query": random.choice(IDS["query"]), "query_id": "checkpoint"}
        document["batch"] |= {"run_id": random.choice(RUNS), "batch_id": random.randrange(4)}
        return
    names = random.sample(SUBSTREAMS, random.randint(1, len(SUBSTREAMS)))
    document.clear()
    document["substreams"] = names
    document["max_event_times"] = [1_357_554_600_000 + random.randrange(10**9) for _ in names]


def _adapt_names(random: Random, document: dict[str, Any]) -> None:
    names = random.sample(SUBSTREAMS, random.randint(1, 2))
    document |= {"substreams": names, "query": random.choice(["", *IDS["query"]])}
    for column in ("max_event_times", "watermarks"):
        if column in document:
            document[column] = [1_357_552_800_000] * len(names)
