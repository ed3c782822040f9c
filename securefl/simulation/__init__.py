"""How the clients of a round run."""
