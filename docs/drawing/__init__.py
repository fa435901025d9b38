"""The figures of the docs, drawn from runs of the domain: ``make figures``."""
