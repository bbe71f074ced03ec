"""When and where state is copied in memory. What the state consists of is not decided here."""
