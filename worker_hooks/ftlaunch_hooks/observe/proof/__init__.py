"""Proves resumes: fingerprints of steps, and their comparison with the fingerprints of the process before."""
