"""Encryption of a run: security, precision, and who decrypted what."""
