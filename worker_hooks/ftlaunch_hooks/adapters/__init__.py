"""What other people's training loops need: one file a framework, on top of the public API; none imports its framework early."""
