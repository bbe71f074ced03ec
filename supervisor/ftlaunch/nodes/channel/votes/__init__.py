"""The arbiter of nodes that share neither a run dir nor a meeting store: a majority of them elects the head."""
