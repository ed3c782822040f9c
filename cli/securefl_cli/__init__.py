"""The `securefl` command."""
