"""Spark's own windows, deduplication, joins and state, by the watermark of a coordinator."""
