"""Reads weights from checkpoints that other libraries wrote."""
