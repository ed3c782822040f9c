"""Which clients take part in a round: one selector per file."""
