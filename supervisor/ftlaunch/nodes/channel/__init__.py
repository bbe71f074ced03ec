"""Authenticated messages between machines, on sockets in the loop. Nothing here knows what a message means."""
