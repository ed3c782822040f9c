"""Membership inference: attacks by what was seen, shadow models, verdict and section."""
