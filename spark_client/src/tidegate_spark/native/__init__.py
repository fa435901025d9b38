"""The job's watermark for Spark's own windows, deduplication, joins and state.

``options`` describes a native query, ``following`` builds its stream, and ``folding`` folds a batch in the tasks.
``source`` is the source of markers, ``finished`` reports the batches that Spark has finished, and ``listener`` records
the trigger of a run.
"""
