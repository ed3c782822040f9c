"""Models to start with, each with the normalisation of your choice."""
