"""The views of a job that the API, the page and the command line show: one module for each view."""
