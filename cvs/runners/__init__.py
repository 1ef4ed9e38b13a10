"""Runners bring a job onto the nodes and its results home; they never parse."""
