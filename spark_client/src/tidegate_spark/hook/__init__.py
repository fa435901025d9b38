"""The function that Spark calls for every batch of a query.

``batch_function`` runs a batch, ``classify`` assigns rows to classes, ``fold`` reduces them to one entry per substream,
``delays`` measures their delays, ``handler`` passes them to the user's function or to windows, and ``heartbeat``
reports that the query is caught up.
"""
