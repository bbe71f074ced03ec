"""Everything that a training loop can reach: found, fingerprinted, encoded and put back without running foreign code."""
