"""Clients side by side in one wide model."""
