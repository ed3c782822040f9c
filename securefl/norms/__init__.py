"""Batch normalisation under federated training."""
