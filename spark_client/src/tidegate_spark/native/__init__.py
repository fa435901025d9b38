"""The job's watermark for Spark's own windows, deduplication, joins and state.

``following`` builds the stream, ``folding`` folds a batch in the tasks, ``source`` is the source of markers,
``finished`` reports what Spark has finished, and ``triggers`` finds out the trigger of a run.
"""
