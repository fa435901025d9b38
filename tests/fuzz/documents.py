"""Mutations of JSON bodies: one member of a valid body becomes invalid, or the text itself does."""

import gzip
import json
from collections.abc import Callable
from random import Random
from typing import Any

MARK = "@raw@"
"""Prefix of a string that :func:`encode` replaces with the text after it. The text need not be JSON."""
FIELD_BYTES = 300_000
BODY_BYTES = 4 * 1024 * 1024 - 4096
"""Slightly below the largest body that the coordinator accepts."""


def raw(text: str) -> str:
    """Return a value that is written as ``text``."""
    return MARK + text


def encode(document: Any) -> bytes:
    """Return the text of a document."""
    texts: list[str] = []

    def replaced(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(MARK):
            texts.append(value.removeprefix(MARK))
            return f"{MARK}{len(texts) - 1}@"
        if isinstance(value, dict):
            return {name: replaced(member) for name, member in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list) else value

    encoded = json.dumps(replaced(document))
    for number, text in enumerate(texts):
        encoded = encoded.replace(f'"{MARK}{number}@"', text)
    return encoded.encode(errors="surrogatepass")


NUMBERS = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e999999999", "1e-999999999", "0.1", "-0", "-0.0", "1.0"),
    *("1e3", "9007199254740991", "9007199254740992", "-9007199254740992", "9223372036854775808", "1" * 400),
    *("1" * 5000, "1" * 5000 + ".0", "-1", "01", "+1", "0x10", "1_000", ".5", "1.", "--1", "1e", "99999999999999999.0"),
)
TEXTS = (
    *("", " ", "*", "**" * 50, "a" * 129, "a" * 201, "ä" * 101, "\u0000", "a\nb", "\x7f", "\u2028", "😀" * 50, "../.."),
    *("%00", "\ufeffHNL", "null", "{}", "tidegate:{x}", "'; DROP TABLE", "a" * 70_000, "a:b", "a/b", "é", "e\u0301"),
    "\u202eabc",
)
STRINGS = (
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x41"', r'"\u12"', '"\x01"', '"unclosed'),
    *("'HNL'", '"a" "b"', '"\\"'),
)
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1.5, "", "1", [], {}, [[]], [None], [{}], {"a": 1}, [1, "1"])


def nasty(random: Random) -> Any:
    """Return a value that is probably invalid."""
    made: Callable[[], Any] = random.choice(
        [
            lambda: random.choice(VALUES),
            lambda: raw(random.choice(NUMBERS)),
            lambda: random.choice(TEXTS),
            lambda: raw(random.choice(STRINGS)),
            lambda: raw("[" * random.choice([50, 150, 250, 100_000])),
            lambda: raw(_nested(random.choice([50, 190, 250, 20_000]))),
            lambda: [random.choice(VALUES)] * random.choice([2, 201, 1100]),
            lambda: raw("[" + ",".join([random.choice(NUMBERS)] * random.choice([3, 1000])) + "]"),
        ]
    )
    return made()


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def mutated(random: Random, document: Any) -> bytes:
    """Return the text of a document after one to three mutations of its members."""
    document = json.loads(json.dumps(document))
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        document = _change(random, document)
    return encode(document)


def _change(random: Random, value: Any) -> Any:
    """Change one value anywhere in a document."""
    if isinstance(value, dict) and value:
        if random.random() < 0.25:
            return _change_members(random, value)
        name = random.choice(list(value))
        return value | {name: _change(random, value[name])}
    if isinstance(value, list) and value:
        if random.random() < 0.35:
            return _change_length(random, value)
        place = random.randrange(len(value))
        return [*value[:place], _change(random, value[place]), *value[place + 1 :]]
    return nasty(random)


def _change_members(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    name = random.choice(list(value))
    match random.randrange(4):
        case 0:
            return {each: member for each, member in value.items() if each != name}
        case 1:
            return value | {random.choice([*TEXTS, "unknown", name.upper()]): nasty(random)}
        case 2:
            return value | {name: nasty(random)}
        case _:  # the member twice
            pair = f"{json.dumps(value[name])}, {json.dumps(name)}: {json.dumps(random.choice(VALUES))}"
            return value | {name: raw(pair)}


def _change_length(random: Random, value: list[Any]) -> list[Any]:
    match random.randrange(4):
        case 0:
            return value[:-1]
        case 1:
            return [*value, value[-1]]
        case 2:
            most = FIELD_BYTES // len(json.dumps(value))  # larger bodies would be refused unread
            return value * min(random.choice([2, 100, 1001]), max(1, most))
        case _:
            return []


def broken(random: Random, text: bytes) -> bytes:
    """Return a text with one change of its bytes."""
    place = random.randrange(len(text) + 1)
    change: Callable[[], bytes] = random.choice(
        [
            lambda: text[:place],
            lambda: text[:place] + bytes([random.randrange(256)]) + text[place + 1 :],
            lambda: text[:place] + random.randbytes(random.choice([1, 4, 100])) + text[place:],
            lambda: text[:place] + b"\xff\xfe" + text[place:],
            lambda: b"\xef\xbb\xbf" + text,
            lambda: text.decode().encode(random.choice(["utf-16", "utf-32", "utf-16-be"])),
            lambda: text + random.choice([b"}", b"{}", b"\x00", b" " * 70_000, b"//", b","]),
            lambda: random.choice(
                [b"", b"null", b"[]", b'""', b"0", b"{", b"NaN", b"\x00", b"[" * 100_000, b"{" * 999]
            ),
            lambda: text.replace(b":", b"", 1),
            lambda: text.replace(b'"', b"'", random.choice([1, 2, -1])),
            lambda: random.randbytes(random.choice([1, 1000, 100_000])),
        ]
    )
    return change()


def compressed(random: Random, text: bytes) -> bytes:
    """Return a compressed text, a broken one, or 30 MB of zeros in 30 KB."""
    packed = _BOMB if random.random() < 0.3 else gzip.compress(text, mtime=0)
    return packed if random.random() < 0.7 else packed[: random.randrange(len(packed))]


_BOMB = gzip.compress(b"0" * 30_000_000, mtime=0)


def large(random: Random, document: dict[str, Any]) -> bytes:
    """Return a body near the limit on bodies, made of as many small parts as fit, or of one large part."""
    lists = [name for name, member in document.items() if isinstance(member, list)]
    name = random.choice(lists or list(document))
    size = random.choice([FIELD_BYTES, FIELD_BYTES, FIELD_BYTES, BODY_BYTES])
    item = random.choice(["[]", "0", "1.0", "0.5", "{}", '""', "null", '"a"', "[[]]", "[0,0]", "true"])
    part: Callable[[], str] = random.choice(
        [
            lambda: "[" + ",".join([item] * (size // (len(item) + 1))) + "]",
            lambda: json.dumps("x" * size),
            lambda: "1" * size,
            lambda: "[" * (size // 2) + "]" * (size // 2),
            lambda: "{" + ",".join(f'"{number:x}":0' for number in range(size // 10)) + "}",
            lambda: json.dumps([f"{number:x}" for number in range(size // 10)]),
        ]
    )
    if random.random() < 0.2:  # many unknown members, or one with a long name
        extra = ",".join(f'"{number:x}":0' for number in range(size // 10)) if random.random() < 0.7 else ""
        return ("{" + (extra or json.dumps("y" * size) + ":0") + "}").encode()
    return encode(document | {name: raw(part())})
