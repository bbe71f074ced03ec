"""Dtypes, keys, DTensor, the JSON codec: properties of single tensors. No files, no state of a job."""
