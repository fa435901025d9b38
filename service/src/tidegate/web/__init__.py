"""HTTP code that the API and the page share: access, errors, request bodies, actions, connections."""
