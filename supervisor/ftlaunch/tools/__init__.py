"""Tools around a job, which need no running one: preflight, rehearsal, planner, files for Kubernetes and systemd."""
