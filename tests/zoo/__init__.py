"""Shapes of training as people write them, each broken and compared with itself undisturbed."""
