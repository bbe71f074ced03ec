"""What other people's training loops need, on top of the public API; a framework is imported only with its adapter."""
