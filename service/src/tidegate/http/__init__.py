"""The HTTP API, and what the page shares with it.

A request meets the modules in this order: ``connection`` parses it, ``observed`` measures and logs it, ``guard``
refuses it or reads its body, ``turns`` lets it wait, and ``routes.hot`` answers the calls of each batch. FastAPI serves
the other calls with ``routes``. The endpoints use ``request``, ``bodies`` and ``problems``.
"""
