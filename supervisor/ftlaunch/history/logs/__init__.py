"""Notes of where in the logs of ranks something begins, and the logs of one run among those of its job."""
