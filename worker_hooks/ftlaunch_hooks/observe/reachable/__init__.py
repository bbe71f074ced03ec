"""Everything that a training loop can reach: found, fingerprinted, encoded, put back; no foreign code runs."""
