"""A hook of MkDocs, for links, figures, roles and the search.

- Links to files of the repository that are not part of the site become the paths of these files.
- Figures become part of the page, so that they have the colours of its theme.
- Roles in docstrings, such as ``:func:``, become the names to which they refer.
- The search uses the script of the site in place of one from another host, so that it works without a network.
"""

import os
import re
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
FIGURE = re.compile(r"^!\[([^\]]+)\]\((\S+\.svg)\)$", re.MULTILINE)
ROLE = re.compile(r":\w+:(?=<code>)")
WORKER = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)[^)\s]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page, with its figures, and with paths in place of links that leave the site."""
    folder = os.path.dirname(page.file.src_uri)

    def in_site(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = os.path.normpath(os.path.join("docs", folder, target))
        if path.startswith("docs" + os.sep):
            return link[0]
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    def shown(image: re.Match[str]) -> str:
        text = (DOCS / folder / image[2]).resolve().read_text()
        svg = re.sub(r"<style>.*?</style>", "", text[text.index("<svg") :], count=1)
        svg = re.sub(r"\s*\n\s*", " ", svg)
        return svg.replace("<svg", f'<svg class="figure" role="img" aria-label="{escape(image[1])}"', 1)

    return FIGURE.sub(shown, LINK.sub(in_site, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Return the HTML of a page without roles."""
    return ROLE.sub("", html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return a page that loads only files of the site."""
    script = os.path.relpath("site.js", os.path.dirname(page.file.dest_uri) or ".")
    return output.replace(WORKER, script)


def on_post_template(output_content: str, **_: Any) -> str:
    """Return the page for missing pages, which loads only files of the site."""
    return output_content.replace(WORKER, "site.js")
