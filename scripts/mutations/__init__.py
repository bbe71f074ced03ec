"""The mutation run: one thing of the saved state is altered, and nobody may stay silent about it."""
