"""What training uses and no attached object saves: kept where that works, told of once where not."""
