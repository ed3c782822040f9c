"""CKKS behind three types: `AddingContext` adds, `PublicKey` encrypts, `SecretKey` decrypts.

The only package that imports tenseal.
"""
