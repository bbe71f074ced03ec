"""The nodes of a job as its head sees them, behind the interfaces of the one-machine engine.

All of it runs in the head's event loop. Nothing here judges a failure; the engine does.
"""
