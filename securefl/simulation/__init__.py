"""Engines that train a simulation's clients."""
