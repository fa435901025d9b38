"""Characters that a terminal or a browser does not show, as escapes.

Names may hold any printable character, and records that were stored by an older version may hold control characters. A
control character can take over a terminal; a bidirectional or zero-width one makes two different names look alike.
"""

import re

# Control, soft hyphen, zero-width and bidirectional characters, line and paragraph separators, lone surrogates, tags.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return a text of one line with an escape (``\\x1b``, ``\\u202e``) for each character that is not visible."""
    return _INVISIBLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")
