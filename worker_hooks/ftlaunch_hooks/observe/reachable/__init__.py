"""Finds, fingerprints, encodes and puts back values that a training loop can reach. No foreign code runs for that."""
