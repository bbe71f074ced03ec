"""Saves the random number generators of an accelerator, and puts them back or says that they begin anew."""

from __future__ import annotations

from typing import Any

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers import dtensor_numbers


def state_to_save() -> dict[str, Any]:
    """Return the states of the generators of all devices; empty where no accelerator is in use."""
    found = device_port.random_states()
    if found is None:
        return {}
    return {
        "type": found.kind,
        "current": found.current,
        "states": found.states,
        "dtensor": dtensor_numbers.has_begun(),
    }


def put_back(saved: dict[str, Any]) -> None:
    """Put the generators back, and say which of them begin anew.

    Where this process sees another number of devices, only its current one gets a state: that of the device that was
    current when the state was saved.

    Args:
        saved: the result of `state_to_save`.
    """
    if saved and saved["states"]:
        device_port.begin_to_use(saved["type"])
    now = device_port.random_states()
    if now is None and not saved:
        return
    here = _describe(*((None, 0) if now is None else (now.kind, len(now.states))))
    before = _describe(saved.get("type"), len(saved.get("states", ())))
    if now is None or not now.states or not saved or not saved["states"] or now.kind != saved["type"]:
        say(
            f"random numbers of accelerators are not put back (saved: {before}, in this process: {here}): they begin"
            " anew, and a run that draws from them is not exact"
        )
        return
    states = saved["states"]
    if len(now.states) != len(states):
        say(
            f"this process has {here}, and the saved state {before}: the random numbers of the current device go on,"
            " those of others begin anew, and a run that draws from them is not exact"
        )
        states = [states[saved["current"]]]
    device_port.put_back_random_states(saved["type"], states)


def prepare_dtensor(saved: dict[str, Any]) -> None:
    """Have DTensor draw as it did when the state was saved. Call this before random numbers are put back.

    Args:
        saved: the result of `state_to_save`. Of a state that an earlier version saved nothing is known.
    """
    if "dtensor" in saved:
        dtensor_numbers.begin_as_saved(saved["dtensor"])


def _describe(kind: str | None, count: int) -> str:
    """Return the accelerator's type and its number of generators, for a message."""
    return f"{kind or 'no accelerator'} with {count} generators"
