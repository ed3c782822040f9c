"""The server's step from the average: one optimiser per file."""
