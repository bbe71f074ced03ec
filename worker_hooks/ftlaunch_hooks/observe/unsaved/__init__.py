"""What training uses and nobody saves: found while it trains, and told of once. Nothing here changes anything."""
