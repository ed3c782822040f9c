"""What encryption is worth: security, precision, flooding, and who decrypted what."""
