"""The error of state that cannot be saved or restored. Nothing here imports torch: MindSpore's ranks see it, too."""

from __future__ import annotations


class StateError(TypeError):
    """State cannot be saved or restored; the message names the path of the state."""
