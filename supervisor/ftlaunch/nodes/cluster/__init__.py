"""The nodes of a job as its head sees them, behind the engine's interfaces. Nothing here judges a failure."""
