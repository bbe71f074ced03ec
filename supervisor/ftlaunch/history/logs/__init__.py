"""Finds the lines of one run in the logs of its job, with the help of notes on where in the logs runs begin."""
