"""Addresses of the page of a job."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlencode

from tidegate.reads.job_page import JobPageSelection

_DEFAULTS = asdict(JobPageSelection())


def parameters(view: JobPageSelection, **changes: Any) -> Mapping[str, str]:
    """Return the parameters of a selection with some changes, without those that have their default value."""
    wanted = asdict(replace(view, **changes))
    changed = {name: value for name, value in wanted.items() if value != _DEFAULTS[name]}
    return {name: "true" if value is True else str(value) for name, value in changed.items()}


def job_link(job: str, view: JobPageSelection, section: str, **changes: Any) -> str:
    """Return the address of a section on the page of a job, for a selection with some changes."""
    wanted = parameters(view, **changes)
    return f"/jobs/{job}{'?' if wanted else ''}{urlencode(wanted)}#{section}"
