"""What TRL's GRPOTrainer keeps from one step to the next: rollouts, on which several steps train."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ftlaunch_hooks.adapters.refusal import refuse

KIND = "GRPOTrainer"
_KEPT = ("_step", "_buffered_inputs")
_ADDED = ("_last_world_entropy", "entropy_coef")  # by TRL 1
_LOGS = "_logs"  # of completions, which a table shows


def check(trainer: Any) -> None:
    """Raises AttachError where a GRPOTrainer keeps more than can be saved, or this version of TRL has another one."""
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
    """Nothing of another trainer."""
    if not hasattr(trainer, _KEPT[1]):
        return {}
    kept = {name: getattr(trainer, name) for name in _names()}
    return {**kept, _LOGS: _listed(getattr(trainer, _LOGS))} if trainer.log_completions else kept


def put_back(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Put back what `state` has said."""
    for name, value in saved.items():
        if name == _LOGS:
            _refill(getattr(trainer, _LOGS), value)
        else:
            setattr(trainer, name, value)


def _names() -> tuple[str, ...]:
    return _KEPT if version("trl").startswith("0.") else (*_KEPT, *_ADDED)


def _listed(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _listed(one) if isinstance(one, Mapping) else list(one) for name, one in logs.items()}


def _refill(logs: Any, saved: Mapping[str, Any]) -> None:
    """Queues stay what they are: they hold so many entries at most."""
    for name, value in saved.items():
        if isinstance(value, Mapping):
            _refill(logs[name], value)
        else:
            queue: deque[Any] = logs[name]
            queue.clear()
            queue.extend(value)
