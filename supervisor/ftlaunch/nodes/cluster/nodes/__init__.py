"""Single nodes as the head sees them: how a node arrives, what it asks, what it reports, and its place."""
