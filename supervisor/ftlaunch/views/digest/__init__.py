"""Sums up many runs in one report, for `ftctl report DIR`: what the jobs of a directory did and cost."""
