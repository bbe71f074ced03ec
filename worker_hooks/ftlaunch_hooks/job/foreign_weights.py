"""Fills attached modules with the weights of a checkpoint that another library wrote, at the beginning of a new run.

restore.py calls `load_weights` in attach(), on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.foreign_formats import Format
from ftlaunch_contract.progress import SlowWork
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.module import ModulePart
from ftlaunch_hooks.state.parts import list_names
from ftlaunch_hooks.storage.foreign.names import Match
from ftlaunch_hooks.storage.foreign.reading import ForeignWeights
from ftlaunch_hooks.tensors.dtypes import local_of
from ftlaunch_hooks.tensors.json_codec import StateError


def load_weights(path: Path, kind: Format, modules: Sequence[ModulePart], *, should_log: bool) -> None:
    """Fill in place those attached modules whose tensors the checkpoint holds completely.

    Args:
        path: the checkpoint.
        kind: the checkpoint's format.
        modules: the attached modules.
        should_log: whether to log what was loaded; true on one rank.

    Raises:
        StateError: no module fits, or several fit equally well. Nothing has changed then.
        Damaged: the checkpoint cannot be read.
    """
    try:
        found = ForeignWeights(path, kind)
    except (Damaged, OSError) as problem:
        cause = problem.strerror if isinstance(problem, OSError) else problem
        raise Damaged(f"cannot load {path}: {cause}") from problem
    tensors = {part.name: part.tensors()[0] for part in modules}
    fits = {name: found.fit(name, held) for name, held in tensors.items() if held}
    chosen = _choose(path, fits)
    size = sum(local_of(tensor).nbytes for name in chosen for tensor in tensors[name].values())
    slow = SlowWork("loading", size, say)
    loads = {name: found.plan(name, tensors[name], fit=fits[name], advance=slow.advance) for name in chosen}
    for fill, _ in loads.values():
        fill()
    slow.finish()
    if should_log:
        _log_loaded(path, tensors, {name: others for name, (_, others) in loads.items()})


def _choose(path: Path, fits: Mapping[str, Match]) -> list[str]:
    """Return the modules that the checkpoint holds completely, each in a place of its own. Raises StateError."""
    if not fits:
        raise StateError("cannot load weights: no module with tensors is attached")
    whole = [name for name, fit in fits.items() if fit.whole and not _belongs_to_another(name, fit.prefix, fits)]
    if not whole:
        name, fit = min(fits.items(), key=lambda item: len(item[1].missing) + len(item[1].surplus))
        raise StateError(f"cannot load weights: {path} does not fit `{name}`: {_difference(fit)}")
    for name in whole:
        if rivals := fits[name].rivals:
            places = ", ".join(f"`{prefix or 'the top'}`" for prefix in sorted([fits[name].prefix, *rivals]))
            raise StateError(
                f"cannot load weights: {path} holds what fits `{name}` in several places ({places:.200}); attach the"
                " module under the name of one, or load it in the script"
            )
        if alike := [other for other in whole if other != name and fits[other].prefix == fits[name].prefix]:
            raise StateError(
                f"cannot load weights: {path} holds one module, and it fits `{name}` as well as {list_names(alike)};"
                " attach with frozen= what is not to be loaded, or load it in the script"
            )
    return whole


def _belongs_to_another(name: str, prefix: str, fits: Mapping[str, Match]) -> bool:
    """Return whether the place `prefix` in the checkpoint has the name of another attached module that fits there."""
    owner = prefix.rstrip(".").rpartition(".")[2]
    return owner != name and owner in fits and fits[owner].whole and fits[owner].prefix == prefix


def _difference(fit: Match) -> str:
    parts = [f"it lacks {list_names(fit.missing)}"] if fit.missing else []
    if fit.surplus:
        parts.append(f"the module has no {list_names(fit.surplus)}")
    return "; ".join(parts)


def _log_loaded(
    path: Path, tensors: Mapping[str, Mapping[str, Tensor]], other_types: Mapping[str, Sequence[str]]
) -> None:
    loaded = ", ".join(f"`{name}` ({len(tensors[name])} tensors)" for name in other_types)
    left = sorted(set(tensors) - set(other_types))
    kept = f"; {list_names(left)} keep what the script gave them" if left else ""
    say(f"took the weights of {loaded} from {path}{kept}; nothing else of that checkpoint is taken")
    for name, others in other_types.items():
        if others:
            converted = list_names(others)
            say(f"{len(others)} tensors of `{name}` were of another type there, and were converted: {converted}")
