"""The store: the commands of ``tidegate.domain`` as atomic scripts in Redis, and the connection to Redis."""
