"""The store: the machine of ``tidegate.domain`` as atomic scripts in Redis, and the connection to it."""
