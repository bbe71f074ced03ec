"""Commands for people at a terminal: what ranks have printed, and completion of words. None of them commands a job."""
