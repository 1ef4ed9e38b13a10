"""Suites that users run; `tests/` beside the package is for developers."""
