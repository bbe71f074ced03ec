"""The proof of a resume: fingerprints of steps, and their comparison with those of the process before."""
