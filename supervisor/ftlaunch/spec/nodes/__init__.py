"""Resolves how many nodes a job has, and where they meet. Pure: nothing here asks the network or a scheduler."""
