"""The store: the commands of ``tidegate.domain`` as atomic functions in Redis, and the connection to Redis."""
