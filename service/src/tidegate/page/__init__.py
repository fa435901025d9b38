"""The operators' page: HTML from templates, kept up to date by an event stream, without a build step."""
