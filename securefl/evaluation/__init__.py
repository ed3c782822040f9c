"""Scores of models: of a run, of unseen clients, and with one client left out."""
