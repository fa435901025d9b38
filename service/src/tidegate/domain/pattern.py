"""Patterns of substream names: ``*`` matches any characters, and every other character matches itself."""


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the whole name.

    For each literal piece of the pattern, the time is linear in the length of the name.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    *middle, last = rest
    at = len(first)
    for piece in middle:
        found = name.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(name) - at >= len(last) and name.endswith(last)
