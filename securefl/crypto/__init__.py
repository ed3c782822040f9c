"""CKKS under one-time keys, and the cards from whose secrets these follow.

The only package that imports tenseal.
"""
