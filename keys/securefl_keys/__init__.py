"""Key ceremony and key files: who makes the keys, and what each role is given."""
