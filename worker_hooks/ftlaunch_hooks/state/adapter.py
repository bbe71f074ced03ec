"""The interface of an adapter: an object that a framework's callback attaches, which saves where the loop is.

An adapter is a module of `adapters/`, named in `ftlaunch_hooks.__init__._ADAPTERS`, or a class of the user's own: hooks
treat both alike. docs/guide/adapters.md shows a whole one. attach() and the survey of unsaved state call the functions
here, on the main thread of a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import nn


class Adapter(Protocol):
    """Saves and restores the position of a framework's loop, under the name under which the object is attached.

    An adapter may have three more attributes, each of which hooks read if it is there:

    - `keeps_attributes_of`: modules whose plain attributes (not parameters, not buffers) `state_dict` has.
    - `keeps_position_of`: loaders, samplers and data sets that `load_state_dict` brings back to their position.
    - `keeps_variables`: names of variables of the training loop that `state_dict` has.

    What is not named there, and not attached, is reported as lost by a resume.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop is, as numbers, texts, tensors, and lists and mappings of them.

        Called between two steps. attach() calls it once before the framework has gone anywhere: from then until the
        loop is there, it returns what `load_state_dict` was given.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the framework go on from a state that `state_dict` returned in another process.

        Called by attach(), before the loop begins.

        Raises:
            RuntimeError: the framework cannot go on from there exactly; the message is for the user.
        """


def modules_kept_by(objects: Iterable[Any]) -> list[nn.Module]:
    """Return the modules whose plain attributes some of the attached objects save. Modules save their own tensors only.

    Args:
        objects: the attached objects.
    """
    adapters = [target for target in objects if not isinstance(target, nn.Module)]
    return [module for adapter in adapters for module in _named(adapter, "keeps_attributes_of")]


def positions_kept_by(objects: Iterable[Any]) -> list[Any]:
    """Return the loaders, samplers and data sets that some of the attached objects bring back to their position."""
    return [kept for target in objects for kept in _named(target, "keeps_position_of")]


def variables_kept_by(objects: Iterable[Any]) -> frozenset[str]:
    """Return the names of the variables of the training loop that some of the attached objects save."""
    return frozenset(name for target in objects for name in _named(target, "keeps_variables"))


def _named(target: Any, attribute: str) -> Sequence[Any]:
    named: Sequence[Any] = getattr(target, attribute, ())
    return named
