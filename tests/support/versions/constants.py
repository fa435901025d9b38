"""The functions of this version with other constants."""

import pytest

from tidegate.store import library as library_module
from tidegate.store.library import Library, library


def library_with(monkeypatch: pytest.MonkeyPatch, **constants: int) -> Library:
    """Return the library of this version with other values of some constants."""
    for name, value in constants.items():
        monkeypatch.setitem(library_module.CONSTANTS, name, value)
    return library.__wrapped__()
