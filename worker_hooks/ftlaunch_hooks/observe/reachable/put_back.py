"""Gives variables, attributes and the objects in them the values of a snapshot.

The Survey calls `put_back` after a restore, and to undo what was changed before the first loop.
"""

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
    """Put back all values that fit. A value that does not fit stays as it is; the caller compares afterwards.

    Args:
        walk: a walk of this process, made just now.
        values: values as [path, parent, how, key, tree], as `Survey.collect` returns them; walk.py lists
            what `how` may be. A value whose parent is not found is left out.
        tensors: the tensors of the values, by key.
        saved: the attached objects of this process.
    """
    writer = _Writer(walk, saved)
    decoder = Decoder(tensors.__getitem__, writer.find, walk.first_paths)
    for path, parent, how, key, tree in values:
        writer.put(decoder, path=path, parent=parent, how=how, key=key, tree=tree)
    writer.write_locals()


class _Writer:
    """Assigns decoded values to the holders that a walk has found."""

    def __init__(self, walk: LoopWalk, saved: SavedElsewhere) -> None:
        self._walk = walk
        self._saved = saved
        self._attached: dict[str, Any] | None = None
        """attached objects by path; found when first asked for"""
        self._locals: dict[str, dict[str, Any]] = {}
        """values of local variables that are not written yet, by scope"""

    def find(self, path: str) -> Any:
        """Return the object at a path of the walk or of the attached objects. Raises StateError where there is none."""
        if path.startswith("attached "):
            if self._attached is None:
                self._attached = self._saved.by_path()
            if path in self._attached:
                return self._attached[path]
        elif path in self._walk.reached:
            value = self._walk.reached[path].value
            return value.module if isinstance(value, ModuleTensors) else value
        raise StateError(f"cannot put back a reference to {path}: there is nothing")

    def put(self, decoder: Decoder, *, path: str, parent: str, how: str, key: Any, tree: Json) -> None:
        """Decode one value into the present object, or assign the decoded object in its place."""
        reached = self._walk.reached.get(path)
        holder = self._walk.objects.get(parent)
        if holder is None:
            return
        now = None if reached is None else reached.value
        try:
            value = decoder.decode(tree, path, now)
            current = now.module if isinstance(now, ModuleTensors) else now
            if reached is None or value is not current:
                self._assign(holder, parent=parent, how=how, key=key, value=value)
        except StateError:
            return  # the caller's comparison names the value

    def _assign(self, holder: Any, *, parent: str, how: str, key: Any, value: Any) -> None:
        """Assign a value in its holder. Raises StateError for a kind of holder that cannot be assigned to."""
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
        """Assign the local variables of running functions that `put` has gathered."""
        for scope, values in self._locals.items():
            frame = self._walk.objects[scope]
            if isinstance(frame, FrameType):
                write_locals(frame, values)


def cell_of(function: Any, name: str) -> CellType:
    """Return the cell of a variable that a function encloses. Raises StateError where there is no such variable."""
    if name not in function.__code__.co_freevars:
        raise StateError(f"cannot find the enclosed variable {name!r}")
    cell: CellType = function.__closure__[function.__code__.co_freevars.index(name)]
    return cell
