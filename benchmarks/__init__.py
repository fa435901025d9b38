"""What the hook costs; ``make bench`` runs all of it. Ratios within one run are what counts, never absolute times."""
