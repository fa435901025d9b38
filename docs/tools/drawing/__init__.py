"""The figures of the docs, drawn from runs of the Python machine by ``make figures``."""
