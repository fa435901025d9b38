"""Results for the clicks of docs/explanation/completeness.md, by lag in minutes."""

BOOK = {
    0: (65.84, 6832, 0.87),
    2: (75.39, 4923, 2.90),
    5: (85.00, 2999, 5.79),
    10: (93.47, 1307, 10.87),
    20: (99.48, 105, 20.87),
    40: (100.00, 0, 40.87),
}
"""Completeness in percent, number of dropped rows, and average latency in minutes."""
