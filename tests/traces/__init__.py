"""Traces for tests: a slow reference, and faults to put into sound ones."""
