"""Settings: what a user writes becomes what the program trusts, in one place."""
