"""How an adapter refuses: as attach() does, with a sentence, and no restart tries the same again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ftlaunch_hooks.job.restore import AttachError
from ftlaunch_hooks.process import error_file

_attached = set[str]()  # names of adapters that keep one training of a process


def refuse(sentence: str) -> NoReturn:
    """Raises AttachError."""
    error_file.count_as_final(AttachError)
    raise AttachError(sentence)


def check_first(name: str) -> None:
    """Raises AttachError where an adapter, of this name, has attached before in this process: see decision 100."""
    if name in _attached:
        refuse(
            f"cannot attach again: {name} has kept a training of this process, and nobody has tried what follows it;"
            " ft.attach(), the Transformers Trainer and Lightning's Trainer keep several trainings of one process"
        )
    _attached.add(name)


def check_members(target: Any, names: str, what: str) -> None:
    """Raises AttachError where an object of a framework lacks one of the attributes that an adapter relies on.

    names: separated by spaces. what: the object and the versions that have them, for the sentence.
    """
    missing = [name for name in names.split() if not hasattr(target, name)]
    if missing:
        refuse(f"cannot attach: {type(target).__name__} has no `{missing[0]}`, which {what} has")


def check_saved(saved: Mapping[str, Any], names: str, adapter: str) -> None:
    """Raises AttachError where what an adapter has saved lacks a name: an earlier version of the adapter has saved it.

    names: separated by spaces.
    """
    missing = [name for name in names.split() if name not in saved]
    if missing:
        refuse(
            f"cannot resume: this snapshot was written by an earlier version of ftlaunch's adapter for {adapter} (it"
            f" has no `{missing[0]}`); give --fresh to start over, or resume it with the version of ftlaunch that wrote"
            " it"
        )


def check_ranks(saved: int, now: int) -> None:
    """Raises AttachError for another number of ranks: where in its data a rank is depends on how many share it."""
    if saved != now:
        refuse(
            f"cannot resume on {now} ranks what {saved} have saved: the positions of their loaders are those of {saved}"
            f" ranks; start with {saved}, or with --fresh"
        )


def take_replicated(more: dict[str, Any]) -> list[str]:
    """Takes `replicated` out of what a script gives to an adapter besides: names of objects that all ranks have alike.

    Raises AttachError for groups of ranks: the adapter adds names of its own, of objects that all ranks have alike.
    """
    said = more.pop("replicated", ())
    if isinstance(said, Mapping):
        refuse(
            "cannot attach: replicated tells of groups of ranks, which only ft.attach() takes; give a list of the names"
            " of objects that all ranks have alike"
        )
    return list(said)
