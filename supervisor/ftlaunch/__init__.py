"""The supervisor: launches the ranks of a training job, watches, judges, restarts and saves. Never imports torch."""

__version__ = "0.1.0"
