"""Talks to systemd as one of its services, and knows what logind does to a user who logs out."""
