"""The calls, by resource."""
