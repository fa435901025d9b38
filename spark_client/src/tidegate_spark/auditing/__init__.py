"""The audit of a query of Structured Streaming: which rows it has lost, from its checkpoint and its sources."""
