"""Generators that a script makes itself: random.Random, NumPy's Generator and RandomState, torch.Generator.

They have no state_dict(). Those given to attach() are saved under their names. Those within reach of the script that
calls attach() are found and saved, too: in its variables, and in attributes of DataLoaders, samplers, data sets,
collators and attached objects. A data set or a collator may make its generator only when the generator is first needed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.parts import list_names
from ftlaunch_hooks.state.random_numbers.made_generators import make
from ftlaunch_hooks.state.random_numbers.shared import python_from, python_to_save
from ftlaunch_hooks.state.random_numbers.walk import generators_within, kinds_by_class
from ftlaunch_hooks.tensors.json_codec import StateError

_BATCH_MAKERS = ("dataset", "collate_fn", "collate_fn.__self__")  # attributes of a DataLoader


def kind_of(target: object) -> str | None:
    """Return the kind of a generator; None for anything else, and for a subclass, whose state is not known."""
    return kind_of_class(type(target))


def kind_of_class(kind: type) -> str | None:
    """Return the kind of generator that instances of a class are, or None, as `kind_of` does."""
    return kinds_by_class().get(kind)


def state_of(target: Any) -> dict[str, Any]:
    """Return the state of a generator, in values that `encode` takes."""
    kind = kind_of(target)
    if kind == "random.Random":
        return {"kind": kind, "state": python_to_save(target.getstate())}
    if kind == "torch.Generator":
        return {"kind": kind, "device": str(target.device), "state": target.get_state()}
    if kind == "numpy.random.RandomState":
        return {"kind": kind, "state": target.get_state(legacy=False)}
    return {"kind": kind, "state": target.bit_generator.state}


def put_back(target: Any, saved: Mapping[str, Any]) -> None:
    """Give a generator the state that `state_of` has read from a generator of the same kind."""
    state = saved["state"]
    if saved["kind"] == "random.Random":
        target.setstate(python_from(state))
    elif saved["kind"] == "numpy.random.Generator":
        target.bit_generator.state = state
    else:
        target.set_state(state)


class Later:
    """An attribute that is None so far, and may become a generator later."""

    def __init__(self, holder: Any, attribute: str) -> None:
        self._holder = holder
        self._attribute = attribute

    def now(self) -> Any:
        """Return the generator, or None as long as there is none."""
        value = getattr(self._holder, self._attribute, None)
        return None if kind_of(value) is None else value

    def make(self, saved: Mapping[str, Any]) -> None:
        """Create a generator of the kind that `state_of` has described in `saved`."""
        make(self._holder, self._attribute, saved)


class OwnGenerators:
    """The generators of one script, by name."""

    def __init__(self, attached: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Take the generators. attached: those given to attach(). found: what `find` has returned."""
        self._attached = attached
        self._known = {**found, **attached}

    @property
    def _all(self) -> dict[str, Any]:
        """Return the generators that exist now, by name."""
        now = {name: known.now() if isinstance(known, Later) else known for name, known in self._known.items()}
        return {name: generator for name, generator in now.items() if generator is not None}

    def present(self) -> list[Any]:
        """Return the generators that exist now."""
        return list(self._all.values())

    def state(self) -> dict[str, Any]:
        """Return the states of the generators now, by name."""
        return {name: state_of(target) for name, target in self._all.items()}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check a state that `state` has returned, and warn of generators that cannot be put back.

        Raises:
            StateError: an attached generator was not saved, or was of another kind.
        """
        for name, target in self._attached.items():
            if name not in saved:
                raise StateError(f"cannot restore `{name}`: attached now, but not when the state was saved")
            if not _fits(target, saved[name]):
                raise StateError(f"cannot restore `{name}`: it is a {kind_of(target)}, another generator was saved")
        self._make(saved)
        other = {name for name, target in self._all.items() if name not in saved or not _fits(target, saved[name])}
        if other:
            say(
                f"the random number generator {list_names(other)} was not saved: its numbers begin anew: this run is"
                " not exact"
            )
        if gone := set(saved) - set(self._all):
            say(
                f"the random number generator {list_names(gone)} was saved, and is not there when attach() is called:"
                " where the script makes it later its numbers begin anew, and this run is not exact; make it before"
                " attach()"
            )

    def _make(self, saved: Mapping[str, Any]) -> None:
        """Create the saved generators that their holders have not made yet."""
        for name, known in self._known.items():
            if name in saved and isinstance(known, Later) and known.now() is None:
                known.make(saved[name])

    def put_back(self, saved: Mapping[str, Any]) -> None:
        """Give each generator the state that was saved under its name."""
        self._make(saved)
        for name, target in self._all.items():
            if name in saved and _fits(target, saved[name]):
                put_back(target, saved[name])


def _fits(target: Any, saved: Mapping[str, Any]) -> bool:
    if kind_of(target) != saved["kind"]:
        return False
    if saved["kind"] == "numpy.random.Generator":
        return bool(target.bit_generator.state["bit_generator"] == saved["state"]["bit_generator"])
    return saved["kind"] != "torch.Generator" or bool(str(target.device) == saved["device"])


# --- finding them -------------------------------------------------------------------------------------------


def find(frame: FrameType, attached: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generators within reach, each under the name that leads to it: `rng`, `loader.generator`.

    Args:
        frame: the frame of the function that calls attach().
        attached: the objects that attach() was given.
    """
    seen = _known_ids()
    found: dict[str, Any] = {}
    places = {**vars(sys.modules["__main__"]), **frame.f_locals}
    reached = [*_reach(attached, everything=True), *_reach(places, everything=False)]
    for path, target in reached:
        if kind_of(target) is not None and id(target) not in seen:
            seen.add(id(target))
            found[path] = target
    return {**_later(places), **found}


def _later(places: Mapping[str, Any]) -> dict[str, Later]:
    """Return the attributes of data sets and collators that are None and may become generators."""
    loaders = {name: value for name, value in list(places.items()) if isinstance(value, DataLoader)}
    holders = {f"{name}.{path}": _follow(loader, path) for name, loader in loaders.items() for path in _BATCH_MAKERS}
    return {
        path: Later(holder, path.rpartition(".")[2])
        for name, holder in holders.items()
        for path, value in _attributes(name, holder)
        if value is None
    }


def _known_ids() -> set[int]:
    """Return the ids of the generators that rng.py saves."""
    known: list[object] = [random._inst, torch.default_generator, *device_port.default_generators()]
    if (numpy := sys.modules.get("numpy")) is not None:
        known.append(numpy.random.mtrand._rand)
    return set(map(id, known))


def _reach(names: Mapping[str, Any], *, everything: bool) -> Iterator[tuple[str, Any]]:
    """Yield names and values within reach of `names`.

    everything: yield the attributes of every object; otherwise only those of DataLoaders and samplers.
    """
    for name, target in list(names.items()):
        yield name, target
        if isinstance(target, DataLoader):
            for holder in ("sampler", "batch_sampler", "batch_sampler.sampler", *_BATCH_MAKERS):
                yield from _attributes(f"{name}.{holder}", _follow(target, holder))
            for holder in _BATCH_MAKERS:  # and deeper, in lists of transforms and in closures
                yield from generators_within(f"{name}.{holder}", _follow(target, holder))
        if everything or isinstance(target, (DataLoader, Sampler)):
            yield from _attributes(name, target)


def _follow(target: Any, path: str) -> Any:
    for attribute in path.split("."):
        target = getattr(target, attribute, None)
    return target


def _attributes(name: str, target: Any) -> Iterator[tuple[str, Any]]:
    for attribute, value in list(getattr(target, "__dict__", {}).items()):
        yield f"{name}.{attribute}", value
