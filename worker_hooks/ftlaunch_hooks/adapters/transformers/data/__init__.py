"""Where in its data a Trainer is, and how it is brought back there."""
