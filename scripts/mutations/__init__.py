"""The mutation run, which alters one thing of the saved state and demands that the resume does not stay silent."""
