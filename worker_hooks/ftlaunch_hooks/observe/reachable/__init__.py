"""What a training loop can reach: found, fingerprinted, encoded and put back. No foreign code runs for that."""
