"""What training loops of frameworks need: one file each, on the public API. None imports its framework early."""
