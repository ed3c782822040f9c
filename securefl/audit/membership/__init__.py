"""Membership inference: attacks by what was seen, shadow models, and the section."""
