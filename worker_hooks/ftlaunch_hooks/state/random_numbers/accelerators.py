"""The random number generators of accelerators other than CUDA's, through the device modules of torch.accelerator.

Such a module (torch.xpu, torch.mps, torch_npu's torch.npu) has get_rng_state() and set_rng_state(), and, where a
process sees several devices, get_rng_state_all() and set_rng_state_all().
"""

from __future__ import annotations

from typing import Any

import torch

from ftlaunch_hooks.devices.device_port import find_accelerator
from ftlaunch_hooks.process.say import say


def random_state() -> dict[str, Any]:
    """Return the states of the generators of all devices, in their order; empty for CUDA, or where none is in use.

    CUDA's generators are read by rng.py.
    """
    accelerator = find_accelerator()
    if accelerator is None or accelerator.type == "cuda":
        return {}
    module: Any = torch.get_device_module(accelerator)
    if hasattr(module, "get_rng_state_all"):
        return {"type": accelerator.type, "states": list(module.get_rng_state_all())}
    if hasattr(module, "get_rng_state"):
        return {"type": accelerator.type, "states": [module.get_rng_state()]}
    return {"type": accelerator.type, "states": []}


def put_back_random_state(saved: dict[str, Any]) -> None:
    """Put the generators back; warn where another accelerator or another number of devices is there now."""
    now = random_state()
    if not now and not saved:
        return
    before = _describe_generators(saved)
    here = _describe_generators(now)
    if before != here or not saved["states"]:
        say(
            f"random numbers of accelerators are not put back (saved: {before}, in this process: {here}): they begin"
            " anew, and a run that draws from them is not exact"
        )
        return
    module = torch.get_device_module(saved["type"])
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(saved["states"])
    else:
        module.set_rng_state(saved["states"][0])


def _describe_generators(state: dict[str, Any]) -> str:
    """Return the accelerator's type and its number of generators, for a message."""
    return f"{state.get('type', 'no accelerator')} with {len(state.get('states', ()))} generators"
