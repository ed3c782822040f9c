"""Clients in worker processes."""
