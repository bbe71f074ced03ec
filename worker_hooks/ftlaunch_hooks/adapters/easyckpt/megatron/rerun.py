"""Save and restore Megatron's rerun state machine, which judges each iteration's results by those seen before.

Megatron's own checkpoints leave out what the machine has seen, so that a resumed run would not judge its first
iteration, and would learn again which values are large. A request to repeat an iteration in another process never
exists at a boundary, and is not saved.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members

_SEEN = ("current_iteration", "first_iteration_complete", "large_value_counts", "max_values")
_INJECTED = "injected_error_type"


def machine(known: str) -> Any:
    """Return this process's machine, or None without one. (Megatron's own function would make one.)

    Args:
        known: the versions of Megatron-core whose machine is known, for the sentence.

    Raises:
        AttachError: the machine lacks an attribute that is saved.
    """
    module = sys.modules.get("megatron.core.rerun_state_machine")
    found = getattr(module, "_GLOBAL_RERUN_STATE_MACHINE", None)
    if found is not None:
        check_members(found, " ".join((*_SEEN, "error_injector")), known)
        check_members(found.error_injector, _INJECTED, known)
    return found


def state(of: Any) -> dict[str, Any]:
    """Return what a machine has seen; an empty dictionary for None."""
    if of is None:
        return {}
    seen = {}
    for name in _SEEN:
        value = getattr(of, name)
        seen[name] = value.copy() if isinstance(value, dict) else value
    injected = getattr(of.error_injector, _INJECTED)
    return {**seen, _INJECTED: None if injected is None else injected.value}


def put_back(of: Any, saved: Mapping[str, Any]) -> None:
    """Restore what `state` returned in a machine that has seen nothing yet. Nothing happens without a machine."""
    if of is None or not saved:
        return
    for name in _SEEN:
        setattr(of, name, saved[name])
    diagnostic = sys.modules["megatron.core.rerun_state_machine"].RerunDiagnostic
    injected = saved[_INJECTED]
    setattr(of.error_injector, _INJECTED, None if injected is None else diagnostic(injected))
