"""Background tasks, notifications, metrics, logs and traces of a replica."""
