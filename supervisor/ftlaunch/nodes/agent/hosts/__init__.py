"""Starts agents on other hosts by ssh, from one command. Nothing here knows ranks or the head."""
