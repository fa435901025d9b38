"""The function that Spark calls for every batch of a query.

``batch_function`` runs a batch, ``classify`` assigns rows to classes, ``fold`` reduces them to one entry for each
substream, ``delays`` measures how late they are, ``handler`` says what becomes of them, ``heartbeat`` reports that the
query is caught up, and ``start`` starts it.
"""
