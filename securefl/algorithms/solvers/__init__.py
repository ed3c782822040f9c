"""A client's local steps: one solver per file."""
