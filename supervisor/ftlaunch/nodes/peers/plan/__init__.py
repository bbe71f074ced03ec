"""Decides who keeps whose copies, what is copied, and in which pieces. Pure: no files, no sockets."""
