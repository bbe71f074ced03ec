"""When and where state is copied in memory. What belongs to the state is decided in `state/`."""
