"""Screenshots of the operators' page, for the docs."""
