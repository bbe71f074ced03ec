"""Finds samplers that a script has put into an object of its own, which saves them with its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ftlaunch_hooks.data.batch_sampler import PositionedSampler


def samplers_saved_by(objects: Iterable[Any]) -> list[PositionedSampler]:
    """Return the samplers among the attributes of `objects` whose state the object's own `state_dict()` asks for.

    `state_dict()` of an object that holds a sampler is called once. Whether the sampler's own is called meanwhile is
    the only sure sign, as equal states may come from another sampler.
    """
    found: dict[int, PositionedSampler] = {}
    for target in objects:
        for sampler in _held_by(target):
            if id(sampler) not in found and _asks_for_state(target, sampler):
                found[id(sampler)] = sampler
    return list(found.values())


def _held_by(target: Any) -> list[PositionedSampler]:
    if not hasattr(target, "state_dict") or not hasattr(target, "__dict__"):
        return []
    return [held for held in vars(target).values() if isinstance(held, PositionedSampler)]


def _asks_for_state(target: Any, sampler: Any) -> bool:
    asked = False
    own = sampler.state_dict

    def state_dict() -> dict[str, Any]:
        nonlocal asked
        asked = True
        state: dict[str, Any] = own()
        return state

    vars(sampler)["state_dict"] = state_dict
    try:
        target.state_dict()
    finally:
        del vars(sampler)["state_dict"]  # uncovers the class's method again
    return asked
