"""Adapters that keep the training loops of frameworks safe, one module for each framework, on top of the public API.

A module here is imported on first use (`ft.transformers`), and is the only one that imports its framework. Adapters run
on the main thread of each rank.
"""
