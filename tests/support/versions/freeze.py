"""``python -m tests.support.versions.freeze``: make the functions of this version those of the previous version.

Run it after a release, so that the tests compare new functions with those of the last release.
"""

from tests.support.versions.previous import FILE
from tidegate.store.library import library

if __name__ == "__main__":
    FILE.write_text(library().text, encoding="utf-8")
