"""Breaks short copies of a job on purpose and compares them, for `ftctl rehearse`, in run dirs of their own."""
