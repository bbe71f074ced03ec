"""The agent of one node in a job of several nodes: runs the node's ranks and helpers on the head's orders.

Nothing here judges a failure; that is the head's task.
"""
