"""The exception for a training that cannot be kept safe."""

from __future__ import annotations


class TrainingRefused(RuntimeError):
    """A training of MindSpore's cannot be kept, or cannot be resumed; the message is a sentence for the user."""
