"""The state of a query at the coordinator and beside its checkpoint."""
