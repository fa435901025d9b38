"""The web page for operators: HTML from templates, updated through an event stream, without a build step."""
