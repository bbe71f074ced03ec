"""Properties of tensors: dtypes, keys, DTensor, memory layout, the JSON codec. No files, no state of a job."""
