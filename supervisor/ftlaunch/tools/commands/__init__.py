"""The commands of `ftctl` that run a tool: `check`, `rehearse`, `plan`, `kubernetes` and `systemd`."""
