"""The calls of the API, by resource."""
