"""The operators' page: rendered here, kept up to date by a stream of events, without a build step."""
