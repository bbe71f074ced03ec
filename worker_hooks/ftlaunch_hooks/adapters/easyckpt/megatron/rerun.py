"""Megatron's rerun state machine between two iterations: what it has seen so far, by which it judges the next results.

Megatron's own checkpoints leave this out: a resumed run does not judge its first iteration, and learns anew which
values are large. That an iteration is to be made again in another process is no state of a boundary, and is not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members

_SEEN = ("current_iteration", "first_iteration_complete", "large_value_counts", "max_values")
_INJECTED = "injected_error_type"


def machine(known: str) -> Any:
    """The one of this process; None where there is none. known: the versions that are.

    Megatron's own function would make one. Raises AttachError for a machine that is not known.
    """
    module = sys.modules.get("megatron.core.rerun_state_machine")
    found = getattr(module, "_GLOBAL_RERUN_STATE_MACHINE", None)
    if found is not None:
        check_members(found, " ".join((*_SEEN, "error_injector")), known)
        check_members(found.error_injector, _INJECTED, known)
    return found


def state(of: Any) -> dict[str, Any]:
    """What a machine has seen; empty for None."""
    if of is None:
        return {}
    seen = {name: value.copy() if isinstance(value := getattr(of, name), dict) else value for name in _SEEN}
    injected = getattr(of.error_injector, _INJECTED)
    return {**seen, _INJECTED: None if injected is None else injected.value}


def put_back(of: Any, saved: Mapping[str, Any]) -> None:
    """Put back what `state` has said, into a machine that has seen nothing yet."""
    if of is None or not saved:
        return
    for name in _SEEN:
        setattr(of, name, saved[name])
    diagnostic = sys.modules["megatron.core.rerun_state_machine"].RerunDiagnostic
    injected = saved[_INJECTED]
    setattr(of.error_injector, _INJECTED, None if injected is None else diagnostic(injected))
