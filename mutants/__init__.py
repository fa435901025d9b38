"""Mutation check: deliberate defects that the tests must catch."""
