"""Escapes for characters that a terminal or a browser does not show.

Names may contain any printable character, and records of older versions may contain control characters. A control
character can send commands to a terminal. A bidirectional or zero-width character makes two different names look alike.
"""

import re

# Control, soft hyphen, zero-width and bidirectional characters, line and paragraph separators, lone surrogates, tags.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Return a text as one line, with an escape (``\x1b``, ``\u202e``) for each invisible character."""
    return _INVISIBLE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
