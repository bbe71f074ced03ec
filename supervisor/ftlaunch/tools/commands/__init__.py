"""Commands of `ftctl` that run a tool: before a job, or for a scheduler."""
