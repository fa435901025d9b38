"""``python -m tests.support.versions.next serve``: a coordinator of this version, but with the next schema."""

from tidegate.__main__ import main
from tidegate.store import checks, library
from tidegate.store.keyspace import SCHEMA

if __name__ == "__main__":
    library.CONSTANTS |= {"SCHEMA": SCHEMA + 1, "SCHEMA_IN_STEPS": SCHEMA + 1.5}
    setattr(checks, "SCHEMA", SCHEMA + 1)  # noqa: B010 - mypy refuses an assignment to a final name
    main()
