"""Clients side by side in one stacked model."""
