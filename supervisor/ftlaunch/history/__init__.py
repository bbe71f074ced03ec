"""Reads run dirs: the journal, the runs in it, goodput, logs. Nothing here needs a running job."""
