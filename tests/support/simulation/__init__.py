"""A simulated job of several nodes, in one thread: real agents, cluster and supervisor, but no process or socket."""
