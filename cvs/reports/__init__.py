"""A measured run, told: for machines (JSON) and for people (a table)."""
