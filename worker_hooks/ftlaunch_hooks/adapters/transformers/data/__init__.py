"""Record where a Trainer is in its data, and bring a Trainer back to that place."""
