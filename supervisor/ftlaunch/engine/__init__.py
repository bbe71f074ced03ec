"""The one loop: it waits, and performs what the state table says. Decisions belong to the floors below."""
