"""Who saw what: every byte by party, and what is not as the settings promise."""
