"""``python -m tests.screens [STATE ...]``: write screenshots of the operators' page in each state to ``out/screens``.

Each state is shown in light and dark mode, on a desktop and on a phone, and as printed.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.support.browser import DESK, PHONE, SCREENS, NoChromium, Visitor, chromium
from tests.support.site import STATES, Site, run_site

WINDOWS: Mapping[str, Mapping[str, Any]] = {
    "desk": {"viewport": DESK},
    "phone": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
}

SCHEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")


def main(names: Sequence[str]) -> int:
    """Take the screenshots of these states, or of all states."""
    if unknown := set(names) - set(STATES):
        print(f"screens: no state {', '.join(sorted(unknown))}: choose from {', '.join(STATES)}", file=sys.stderr)
        return 2
    SCREENS.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as directory, run_site(Path(directory)) as site, chromium() as browser:
            visitor = Visitor(browser)
            for name in names or STATES:
                _take(visitor, site, name)
            for message in visitor.wrong:
                print(f"screens: error in the browser: {message}", file=sys.stderr)
            return int(bool(visitor.wrong))
    except NoChromium as error:
        print(f"screens: {error}", file=sys.stderr)
        return 1


def _take(visitor: Visitor, site: Site, name: str) -> None:
    for window, options in WINDOWS.items():
        page = site.open(visitor, name, **options)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SCREENS / f"{name}-{window}-{scheme}.png", full_page=True)
        if window == "desk":
            page.emulate_media(media="print")
            page.screenshot(path=SCREENS / f"{name}-print.png", full_page=True)
        page.context.close()
    print(f"  {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
