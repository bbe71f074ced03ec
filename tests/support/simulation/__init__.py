"""A job of several nodes in one thread, without processes or sockets: the very agents, cluster and supervisor."""
