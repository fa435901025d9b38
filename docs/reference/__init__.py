"""The tables of docs/reference.md, generated from the code."""
