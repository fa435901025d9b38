"""Roles of keys."""

from enum import StrEnum


class Role(StrEnum):
    """What a key may be used for. ``report`` is for a Spark job: it creates jobs and reports to them, and changes no
    configuration.
    """

    READ = "read"
    REPORT = "report"
    OPERATE = "operate"
    ADMIN = "admin"
