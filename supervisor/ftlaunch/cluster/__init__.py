"""The nodes of a job as its head sees them: ranks, pages, saver and autopsies of other machines, behind the engine's interfaces. Nothing here judges a failure."""
