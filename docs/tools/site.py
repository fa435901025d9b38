"""A hook of MkDocs: links to files of the repository that are not part of the site become their paths."""

import os
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)[^)\s]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page, with paths in place of links that leave the site."""
    folder = os.path.dirname(page.file.src_uri)

    def in_site(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = os.path.normpath(os.path.join("docs", folder, target))
        if path.startswith("docs" + os.sep):
            return link[0]
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(in_site, markdown)
