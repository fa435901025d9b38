"""The function that Spark calls for every batch of a query.

* ``batch_function`` runs a batch.
* ``classify`` assigns rows to classes.
* ``folding`` reduces rows to one entry per substream.
* ``delays`` measures the delays of rows.
* ``handlers`` passes rows to the user's function or to windows.
* ``heartbeat`` reports that the query is caught up.
"""
