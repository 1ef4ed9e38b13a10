"""Readers of what a job leaves: one module per format, each ending in a `cvs.models.ParseResult`."""
