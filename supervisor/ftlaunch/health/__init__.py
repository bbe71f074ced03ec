"""Whether ranks are late, slow, or wrong in their numbers. What follows from it is decided in policy."""
