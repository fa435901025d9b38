"""Patterns of substream names, for policies of their own: ``*`` stands for any characters, all else for itself."""


def matches(pattern: str, name: str) -> bool:
    """Whether the whole of ``name`` fits. Linear in its length for each literal piece; nothing is tried twice."""
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
