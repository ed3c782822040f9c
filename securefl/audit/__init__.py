"""Audits: attacks on a run, and bounds on what it leaks that hold with a stated confidence.

Each is a function of what one party saw, and can be used alone. Nothing is imported here.
"""
