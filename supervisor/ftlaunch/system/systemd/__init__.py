"""What a service tells systemd, and what logind does to a user who logs out. Nothing here knows of jobs."""
