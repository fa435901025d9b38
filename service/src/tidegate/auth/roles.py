"""Roles of keys. The command line imports them at its start, so they are apart from the keys, which need pydantic."""

from enum import StrEnum


class Role(StrEnum):
    """A role of a key. Spark uses ``report``, which can create jobs and report, but cannot change a configuration."""

    READ = "read"
    REPORT = "report"
    OPERATE = "operate"
    ADMIN = "admin"


READERS = (Role.READ, Role.REPORT, Role.OPERATE, Role.ADMIN)
REPORTERS = (Role.REPORT, Role.ADMIN)
OPERATORS = (Role.OPERATE, Role.ADMIN)
REPORTERS_AND_OPERATORS = (Role.REPORT, Role.OPERATE, Role.ADMIN)
ADMINS = (Role.ADMIN,)
