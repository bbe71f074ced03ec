"""Weights in checkpoints that other libraries wrote."""
