"""The table of keys, in parts: what a job can be asked, with words of help. Nothing here reads or resolves a value."""
