"""Warn once of attributes of a script's own callbacks and trainers that change during training and are not saved.

Boundaries calls `UnsavedAttributes.check` at each step boundary; only rank 0 checks.
"""

from __future__ import annotations

from collections import deque
from types import FunctionType
from typing import Any

from torch import Tensor
from transformers.trainer_callback import ExportableState

from ftlaunch_hooks.process.say import say

_LIBRARIES = ("accelerate", "builtins", "ftlaunch_hooks", "peft", "transformers", "trl")
_COMPARED_TYPES = (bool, int, float, str, list, tuple, dict, set, deque, Tensor)
_MOST = 10_000  # elements; of a container with more only the length is compared


class UnsavedAttributes:
    """Compares plain attributes after 1, 2, 4, 8 ... steps."""

    def __init__(self, trainer: Any) -> None:
        """Find the objects whose attributes are compared, as a training begins."""
        unsaved = [callback for callback in trainer.callback_handler.callbacks if not _is_saved(callback)]
        own = [callback for callback in unsaved if _of_script(type(callback))]
        self._holders: list[Any] = [trainer, *own] if trainer.is_world_process_zero() else []
        self._own = _names_in(type(trainer))
        self._first: list[dict[str, str]] = []
        self._due = 0

    def check(self, step: int) -> None:
        """Compare, if that is due after `step`, and warn of the first attributes that changed."""
        if not self._holders or step < self._due:
            return
        self._due = 2 * step
        now = [self._plain(holder) for holder in self._holders]
        self._first = self._first or now
        for holder, first, values in zip(self._holders, self._first, now, strict=True):
            if changed := sorted(name for name in values if values[name] != first.get(name)):
                names = ", ".join(f"`{type(holder).__name__}.{name}`" for name in changed[:3])
                say(
                    f"{names} changes in training and is not saved: where training depends on it, a resumed run is not"
                    " exact; give the callback state_dict() and load_state_dict(), or make it an ExportableState"
                )
                self._holders = []
                return

    def _plain(self, holder: Any) -> dict[str, str]:
        """Return the texts to compare of an object's plain attributes, by name."""
        own = self._own if holder is self._holders[0] else vars(holder).keys()
        values = {
            name: value for name, value in vars(holder).items() if name in own and isinstance(value, _COMPARED_TYPES)
        }
        return {name: _comparable(value) for name, value in values.items()}


def _comparable(value: Any) -> str:
    """Return a text that differs for different values; for a large container a text of its length alone."""
    if isinstance(value, Tensor):
        size = value.numel()
    elif hasattr(value, "__len__"):
        size = len(value)
    else:
        size = 0
    return repr(value) if size <= _MOST else f"{size} elements"


def _is_saved(callback: Any) -> bool:
    """Whether the adapter saves the state of a callback."""
    return isinstance(callback, ExportableState) or callable(getattr(callback, "state_dict", None))


def _of_script(kind: type) -> bool:
    """Whether a class is a script's own, and not a library's."""
    return kind.__module__.partition(".")[0] not in _LIBRARIES


def _names_in(kind: type) -> set[str]:
    """Return the names that methods of a script's own trainer classes use; other attributes are the library's."""
    names: set[str] = set()
    for base in filter(_of_script, kind.__mro__):
        for member in vars(base).values():
            if isinstance(member, FunctionType):
                names |= set(member.__code__.co_names)
    return names
