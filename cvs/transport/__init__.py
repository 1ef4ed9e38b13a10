"""The only code that reaches a node."""
