"""Pure decisions: state table, diagnosis, restart verdict. No clock, no system call, no randomness."""
