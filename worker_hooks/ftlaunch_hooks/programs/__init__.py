"""Run as files, in a Python that may lack the hooks: they import the standard library and torch, nothing of ours."""
