"""The generator of docs/reference.md."""
