"""What an agent has on its node: the ranks, and the helper processes beside them."""
