"""Bounds on ε from below: canary records, canary clients, and the section."""
