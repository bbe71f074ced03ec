"""Many run dirs at a glance: what the ends of their journals say. Nothing here reads a journal as a whole."""
