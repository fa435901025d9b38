"""``python -m tests.support.versions.previous serve``: a coordinator with the functions of the previous version.

``previous.lua`` is a copy of the functions. It has all later corrections, because the twin test compares every answer.
After a release, ``python -m tests.support.versions.freeze`` replaces the copy.
"""

import re
from functools import cache
from pathlib import Path

from tidegate.__main__ import main
from tidegate.store import functions, servers
from tidegate.store.library import Library

FILE = Path(__file__).with_name("previous.lua")


@cache
def previous_library() -> Library:
    """Return the library of the previous version."""
    text = FILE.read_text(encoding="utf-8")
    named = re.match(r"#!lua name=(\S+)\n", text)
    assert named is not None
    return Library(named.group(1), text)


if __name__ == "__main__":
    for module in (functions, servers):
        setattr(module, "library", previous_library)  # noqa: B010 - mypy refuses an assignment to an imported name
    main()
