"""Benchmarks of coordination; ``make bench BENCH=<name>`` runs one. Absolute times depend on the machine."""
