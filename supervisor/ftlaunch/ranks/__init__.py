"""Starts, observes and ends the rank processes of one attempt. Nothing here judges what is observed."""
