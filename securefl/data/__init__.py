"""Data sets, and their partition into clients."""
