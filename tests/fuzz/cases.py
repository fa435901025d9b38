"""Cases by seed and number: valid requests, mutations of valid requests, and bytes that are not HTTP."""

import re
from collections.abc import Callable
from random import Random

from tests.fuzz import documents
from tests.fuzz.messages import Case, Request
from tests.fuzz.operations import IDS, JOBS, Operations
from tests.fuzz.values import CHUNKS, FRAMINGS, GARBAGE, HEADERS, METHODS, NAMES, PARAMETERS, PATHS

SLOW_BYTES = 40
"""Number of bytes that a slow client sends, one per second. It is more than the coordinator waits for."""


class Cases:
    """The cases of a seed.

    Args:
        seed: The seed. A case depends on the seed and its number, and not on other cases.
        keys: A valid key and keys that may not make all calls.
    """

    def __init__(self, seed: int, keys: list[str]) -> None:
        self._seed, self._keys = seed, keys
        self._operations = Operations(keys[0])
        self._kinds: dict[Callable[[Random], Case], int] = {
            self._valid: 24, self._document: 24, self._text: 9, self._parameters: 10, self._path: 6, self._headers: 10,
            self._credentials: 4, self._large: 1, self._framing: 5, self._garbage: 3, self._pipelined: 3,
            self._leaving: 3, self._split: 3, self._slow: 1,
        }  # fmt: skip

    @property
    def operations(self) -> list[str]:
        """Ids of all operations."""
        return list(self._operations.all)

    def case(self, number: int) -> Case:
        """Return a case."""
        random = Random(f"{self._seed}/{number}")
        make = random.choices(list(self._kinds), list(self._kinds.values()))[0]
        return make(random)

    def largest(self, number: int) -> Case:
        """Return a case with a large body."""
        return self._large(Random(f"{self._seed}/large/{number}"))

    def preparation(self) -> list[Case]:
        """Return requests that create all jobs, with a batch."""
        random = Random(self._seed)
        made: list[Case] = []
        for job in JOBS:
            for name in ("configure", "begin", "report", "commit"):
                request = self._operations.one(random, name)
                request.target = re.sub(rb"/batches/[0-9]+", b"/batches/0", request.target)
                for known in JOBS:
                    request.target = request.target.replace(known.encode(), job.encode())
                if name == "configure":
                    request.headers = [each for each in request.headers if each[0] != b"if-match"]
                    request.set(b"if-none-match", b"*")
                made.append(_case("preparation", request))
        return made

    def _valid(self, random: Random) -> Case:
        return _case("valid", self._operations.any(random))

    def _document(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        request.body = documents.mutated(random, request.document)
        return _case("document", request)

    def _text(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        assert request.body is not None
        request.body = documents.broken(random, request.body)
        if random.random() < 0.2:
            request.headers.append((b"content-encoding", random.choice([b"gzip", b"br", b"deflate"])))
            request.body = documents.compressed(random, request.body)
        return _case("text", request)

    def _large(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        request.body = documents.large(random, request.document)
        return _case("large", request)

    def _parameters(self, random: Random) -> Case:
        request = self._operations.any(random)
        pairs = [
            b"%b=%b" % (random.choice(NAMES), random.choice(PARAMETERS)) for _ in range(random.choice([1, 1, 2, 3]))
        ]
        if random.random() < 0.05:
            pairs = [b"lag_ms=1"] * random.choice([201, 5000])
        request.target += (b"&" if b"?" in request.target else b"?") + b"&".join(pairs)
        return _case("parameters", request, must_answer=False)

    def _path(self, random: Random) -> Case:
        request = self._operations.any(random)
        if random.random() < 0.5:
            request.target = random.choice(PATHS)
        else:
            job = random.choice(IDS["job"]).encode()
            value = random.choice([*PARAMETERS, *PATHS])
            request.target = request.target.replace(job, value, 1)
        if random.random() < 0.4:
            request.method = random.choice(METHODS)
        if random.random() < 0.3:
            request.headers = [each for each in request.headers if each[0] != b"authorization"]
        return _case("path", request, must_answer=False)

    def _headers(self, random: Random) -> Case:
        request = self._operations.any(random)
        for _ in range(random.choice([1, 1, 2, 4])):
            name, value = random.choice(HEADERS)
            if random.random() < 0.5:
                request.set(name, value)
            else:
                request.headers.append((name, value))
        if random.random() < 0.1:
            request.headers += [(b"x-%d" % number, b"y" * 10) for number in range(random.choice([50, 110, 2000]))]
        return _case("headers", request, must_answer=False)

    def _credentials(self, random: Random) -> Case:
        request = self._operations.any(random)
        other = random.choice(self._keys).encode()
        value = random.choice([b"", b"Bearer", b"Bearer ", b"bearer " + other, b"Bearer " + other, b"Bearer " + other[:-1], b"Bearer tdg__", b"Bearer \xff", b"Bearer " + b"x" * 60_000, b"Basic " + other, b"Bearer tdg_000000000000_" + b"a" * 43, other])  # fmt: skip  # noqa: E501
        request.set(b"authorization", value)
        return _case("credentials", request, must_answer=False)

    def _framing(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        framing = random.choice(FRAMINGS)
        request.headers += framing
        if any(b"transfer-encoding" in name for name, _ in framing):
            request.body = random.choice(CHUNKS)
        return _case("framing", request, must_answer=False)

    def _garbage(self, random: Random) -> Case:
        wire = random.choice(GARBAGE)
        if random.random() < 0.6:
            valid = self._operations.any(random).encode()
            wire = documents.broken(random, valid[:2000])
        return Case("garbage", "none", wire, [b"GET"] * 50, must_answer=False)

    def _pipelined(self, random: Random) -> Case:
        requests = [self._operations.any(random) for _ in range(random.choice([2, 5, 30]))]
        requests = [request for request in requests if request.operation != "watch"]
        wire = b"".join(request.encode() for request in requests) + random.choice([b"", b"", b"\x00garbage\r\n\r\n"])
        return Case(
            "pipelined", "several", wire, [request.method for request in requests], must_answer=wire[-4:] != b"\r\n\r\n"
        )

    def _leaving(self, random: Random) -> Case:
        wire = self._operations.any(random).encode()
        wire = wire[: random.choice([len(wire), random.randrange(len(wire) + 1)])]
        return Case("leaving", "none", wire, must_answer=False, leaves=True)

    def _split(self, random: Random) -> Case:
        """Return a valid request in small pieces."""
        case = _case("split", self._operations.any(random))
        case.piece = random.choice([1, 7, 100])
        return case

    def _slow(self, random: Random) -> Case:
        """Return a request that is never complete in time."""
        wire = self._operations.with_body(random).encode()
        first = random.choice([0, wire.index(b"\r\n\r\n") + 4])
        case = Case("slow", "none", wire[: first + SLOW_BYTES], must_answer=False)
        case.piece, case.pause_s = max(1, first), 1.0
        return case


def _case(kind: str, request: Request, *, must_answer: bool = True) -> Case:
    return Case(kind, request.operation, request.encode(), [request.method], must_answer)
