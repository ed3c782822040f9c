"""Connections of a federation as calls of NVIDIA FLARE's, which is trusted with nothing.

Nothing here imports it: who calls whom is a parameter.
"""
