"""Bounds on ε from below: canary records, canary clients, their verdict and section."""
