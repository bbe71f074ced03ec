"""Give variables, attributes and what they hold the values that they had at a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import CellType, FrameType
from typing import Any

from torch import Tensor

from ftlaunch_hooks.observe.reachable.fingerprints import base_of_container
from ftlaunch_hooks.observe.reachable.frame_locals import write_locals
from ftlaunch_hooks.observe.reachable.kinds import instance_dict, kind_of_type
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.reachable.value_codec import Decoder
from ftlaunch_hooks.observe.reachable.walk import LoopWalk, ModuleTensors
from ftlaunch_hooks.tensors.json_codec import Json, StateError


def put_back(
    walk: LoopWalk, values: Iterable[Json], tensors: Mapping[str, Tensor], saved: SavedElsewhere
) -> None:  # fmt: skip
    """Put back all values that fit; those that do not are left as they are, and the caller compares.

    walk: of this process, now. values: as Survey.collect has written them. tensors: by key.
    """
    writer = _Writer(walk, saved)
    decoder = Decoder(tensors.__getitem__, writer.find, walk.first_paths)
    for path, parent, how, key, tree in values:
        writer.put(decoder, path, parent, how, key, tree)
    writer.write_locals()


class _Writer:
    def __init__(self, walk: LoopWalk, saved: SavedElsewhere) -> None:
        self._walk, self._saved = walk, saved
        self._attached: dict[str, Any] | None = None
        self._locals: dict[str, dict[str, Any]] = {}  # by scope

    def find(self, path: str) -> Any:
        """The object at a path. Raises StateError where there is none."""
        if path.startswith("attached "):
            if self._attached is None:
                self._attached = self._saved.by_path()
            if path in self._attached:
                return self._attached[path]
        elif path in self._walk.reached:
            value = self._walk.reached[path].value
            return value.module if isinstance(value, ModuleTensors) else value
        raise StateError(f"cannot put back a reference to {path}: there is nothing")

    def put(self, decoder: Decoder, path: str, parent: str, how: str, key: Any, tree: Json) -> None:
        """Decode one value into what is there, or assign what was decoded."""
        reached = self._walk.reached.get(path)
        holder = self._walk.objects.get(parent)
        if holder is None:
            return
        now = None if reached is None else reached.value
        try:
            value = decoder.decode(tree, path, now)
            current = now.module if isinstance(now, ModuleTensors) else now
            if reached is None or value is not current:
                self._assign(holder, parent, how, key, value)
        except StateError:
            return  # the comparison that follows names it

    def _assign(self, holder: Any, parent: str, how: str, key: Any, value: Any) -> None:
        """Raises StateError where a value cannot be assigned."""
        if how in ("local", "given"):
            self._locals.setdefault(parent, {})[key] = value
        elif how == "global":
            holder[key] = value
        elif how == "attribute":
            instance_dict(holder)[key] = value
        elif how == "slot":
            dict(kind_of_type(type(holder)).slots)[key].__set__(holder, value)
        elif how == "class":
            type.__setattr__(holder, key, value)
        elif how == "cell":
            cell_of(holder, key).cell_contents = value
        elif how == "defaults":
            holder.__defaults__ = value
        elif how == "item" and base_of_container(holder) in (list, dict):
            base_of_container(holder).__setitem__(holder, key, value)
        else:
            raise StateError(f"cannot assign {key!r}")

    def write_locals(self) -> None:
        """Assign the variables of running functions, of each function at once."""
        for scope, values in self._locals.items():
            frame = self._walk.objects[scope]
            if isinstance(frame, FrameType):
                write_locals(frame, values)


def cell_of(function: Any, name: str) -> CellType:
    """The cell of a variable that a function encloses. Raises StateError."""
    if name not in function.__code__.co_freevars:
        raise StateError(f"cannot find the enclosed variable {name!r}")
    cell: CellType = function.__closure__[function.__code__.co_freevars.index(name)]
    return cell
