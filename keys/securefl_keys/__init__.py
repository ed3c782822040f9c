"""Key ceremony and key files: who makes the CKKS pair, and which folder each role is given."""
