"""Says once what callbacks and trainers of a script's own keep from step to step in attributes that nobody saves."""

from __future__ import annotations

from collections import deque
from types import FunctionType
from typing import Any

from torch import Tensor
from transformers.trainer_callback import ExportableState

from ftlaunch_hooks.process.say import say

_LIBRARIES = ("accelerate", "builtins", "ftlaunch_hooks", "peft", "transformers", "trl")
_LOOKED_AT = (bool, int, float, str, list, tuple, dict, set, deque, Tensor)
_MOST = 10_000  # elements: of a larger container only the length is compared


class UnsavedAttributes:
    """Looks at plain attributes after 1, 2, 4, 8 ... steps."""

    def __init__(self, trainer: Any) -> None:
        """The training begins."""
        saved = (ExportableState,)
        own = [
            one for one in trainer.callback_handler.callbacks if _of_script(type(one)) and not isinstance(one, saved)
        ]
        own = [one for one in own if not callable(getattr(one, "state_dict", None))]
        self._holders: list[Any] = [trainer, *own] if trainer.is_world_process_zero() else []
        self._own = _names_in(type(trainer))
        self._first: list[dict[str, str]] = []
        self._due = 0

    def look(self, step: int) -> None:
        """`step` is complete."""
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
        own = self._own if holder is self._holders[0] else vars(holder).keys()
        values = {name: value for name, value in vars(holder).items() if name in own and isinstance(value, _LOOKED_AT)}
        return {name: _look(value) for name, value in values.items()}


def _look(value: Any) -> str:
    size = value.numel() if isinstance(value, Tensor) else len(value) if hasattr(value, "__len__") else 0
    return repr(value) if size <= _MOST else f"{size} elements"


def _of_script(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


def _names_in(kind: type) -> set[str]:
    """The names that the methods of a script's own trainer use: what a library's use is the library's."""
    functions = [one for each in kind.__mro__ if _of_script(each) for one in vars(each).values()]
    return {name for function in functions if isinstance(function, FunctionType) for name in function.__code__.co_names}
