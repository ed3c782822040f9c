"""What encryption is worth: security, precision, and who decrypted what."""
