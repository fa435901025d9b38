"""Addresses of pages, from the selections that they show."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any
from urllib.parse import urlencode

from tidegate.views.job_page import JobPageSelection


def parameters(view: Any, **changes: Any) -> Mapping[str, str]:
    """Return the fields of a selection (a dataclass) with some changes, without those that have their default value."""
    wanted = asdict(replace(view, **changes))
    changed = {each.name: wanted[each.name] for each in fields(view) if wanted[each.name] != each.default}
    return {name: "true" if value is True else str(value) for name, value in changed.items()}


def job_link(job: str, view: JobPageSelection, section: str, **changes: Any) -> str:
    """Return the address of a section on the page of a job, for a selection with some changes."""
    wanted = parameters(view, **changes)
    return f"/jobs/{job}{'?' if wanted else ''}{urlencode(wanted)}#{section}"
