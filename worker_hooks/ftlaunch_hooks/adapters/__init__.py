"""What other people's training loops need: one module a framework, on top of the public API.

A module here is imported on use, and is the only place that imports its framework.
"""
