"""The worth of encryption: security, precision, and who decrypted what."""
