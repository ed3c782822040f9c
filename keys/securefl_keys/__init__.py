"""Key ceremony and key files: makers of the keys, and the files that each role receives."""
