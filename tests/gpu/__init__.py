"""What needs a GPU. FT_DEVICE=cpu runs all of it on the processor, but for what only a GPU has: streams and graphs."""
