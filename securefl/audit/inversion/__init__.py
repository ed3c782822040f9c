"""Gradient inversion: images from one client's gradient, with and without BN statistics."""
