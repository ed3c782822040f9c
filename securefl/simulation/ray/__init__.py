"""Clients in actors of a Ray cluster, which may span machines."""
