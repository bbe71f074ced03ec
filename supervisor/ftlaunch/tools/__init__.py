"""Tools that need no running job: preflight, rehearsal, planner, and files for Kubernetes and systemd."""
