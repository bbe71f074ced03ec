"""Authenticated messages between machines, and the arbiter by which nodes find the head.

The sockets belong to an event loop. Nothing here knows what a message means.
"""
