"""Save and restore what TRL's GRPOTrainer keeps from step to step: rollouts on which several steps train.

All names here are private to TRL; `check` refuses a version that lacks one. inside.py is the only caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ftlaunch_hooks.adapters.refusal import refuse

KIND = "GRPOTrainer"
"""name of the class"""
_KEPT = ("_step", "_buffered_inputs")
_ADDED = ("_last_world_entropy", "entropy_coef")  # in TRL 1
_LOGS = "_logs"  # queues of completions, which TRL shows as a table


def check(trainer: Any) -> None:
    """Raise AttachError where a GRPOTrainer keeps more than can be saved, or lacks an attribute that is saved."""
    for name, why in (
        ("use_vllm", "vLLM draws random numbers of its own, which are not saved"),
        ("environment_factories", "what its environments keep is not saved"),
        ("_is_vlm", "rollouts with images are not saved"),
    ):
        if getattr(trainer, name, None):
            refuse(f"cannot keep this {KIND}: `{name.lstrip('_')}` is set: {why}")
    if missing := [name for name in (*_names(), _LOGS) if not hasattr(trainer, name)]:
        refuse(f"cannot keep this {KIND}: this version of TRL has no {KIND}.{missing[0]}, which is saved")


def state(trainer: Any) -> dict[str, Any]:
    """Return the rollouts and logs of a GRPOTrainer, and an empty dictionary for other trainers."""
    if not hasattr(trainer, _KEPT[1]):
        return {}
    kept = {name: getattr(trainer, name) for name in _names()}
    return {**kept, _LOGS: _listed(getattr(trainer, _LOGS))} if trainer.log_completions else kept


def put_back(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Put back what `state` returned."""
    for name, value in saved.items():
        if name == _LOGS:
            _refill(getattr(trainer, _LOGS), value)
        else:
            setattr(trainer, name, value)


def _names() -> tuple[str, ...]:
    """Return the names of the attributes that this version of TRL has."""
    return _KEPT if version("trl").startswith("0.") else (*_KEPT, *_ADDED)


def _listed(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings of queues with lists in the place of the queues."""
    return {name: _listed(entry) if isinstance(entry, Mapping) else list(entry) for name, entry in logs.items()}


def _refill(logs: Any, saved: Mapping[str, Any]) -> None:
    """Fill the queues, which are not replaced because each has a maximum length."""
    for name, value in saved.items():
        if isinstance(value, Mapping):
            _refill(logs[name], value)
        else:
            queue: deque[Any] = logs[name]
            queue.clear()
            queue.extend(value)
