"""What supervisor and ranks share: names, memory pages, checkpoint files. It imports neither of them, and no torch."""
