"""Selection of the clients of a round: one selector per file."""
