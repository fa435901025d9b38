"""The generator of pages of docs/reference."""
