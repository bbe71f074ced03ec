"""Refuse a training in an adapter: AttachError with a sentence for the user, after which the job is not restarted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ftlaunch_hooks.job.restore import AttachError
from ftlaunch_hooks.process import error_file

_attached = set[str]()  # names of adapters that have attached in this process


def refuse(sentence: str) -> NoReturn:
    """Raise AttachError, and have no restart try the same again.

    Args:
        sentence: for the user: "cannot ...: cause", what is allowed, what happens next.
    """
    error_file.count_as_final(AttachError)
    raise AttachError(sentence)


def check_first(name: str) -> None:
    """Raise AttachError if the adapter `name` has attached before in this process (decision 100)."""
    if name in _attached:
        refuse(
            f"cannot attach again: {name} has kept a training of this process, and nobody has tried what follows it;"
            " ft.attach(), the Transformers Trainer and Lightning's Trainer keep several trainings of one process"
        )
    _attached.add(name)


def check_members(target: Any, names: str, what: str) -> None:
    """Raise AttachError if an object of a framework lacks an attribute that an adapter uses.

    Args:
        target: the object.
        names: names of attributes, separated by spaces.
        what: the framework and its versions that have these attributes, for the sentence.
    """
    missing = [name for name in names.split() if not hasattr(target, name)]
    if missing:
        refuse(f"cannot attach: {type(target).__name__} has no `{missing[0]}`, which {what} has")


def check_saved(saved: Mapping[str, Any], names: str, adapter: str) -> None:
    """Raise AttachError for a state that an earlier version of an adapter saved, which lacks a key.

    Args:
        saved: the state.
        names: keys that the state must have, separated by spaces.
        adapter: name of the framework, for the sentence.
    """
    missing = [name for name in names.split() if name not in saved]
    if missing:
        refuse(
            f"cannot resume: this snapshot was written by an earlier version of ftlaunch's adapter for {adapter} (it"
            f" has no `{missing[0]}`); give --fresh to start over, or resume it with the version of ftlaunch that wrote"
            " it"
        )


def check_ranks(saved: int, now: int) -> None:
    """Raise AttachError if the number of ranks has changed, because a rank's place in its data depends on the number.

    Args:
        saved: number of ranks that saved.
        now: number of ranks of the present job.
    """
    if saved != now:
        refuse(
            f"cannot resume on {now} ranks what {saved} have saved: the positions of their loaders are those of {saved}"
            f" ranks; start with {saved}, or with --fresh"
        )


def pop_replicated(more: dict[str, Any]) -> list[str]:
    """Remove the option `replicated` from a script's further arguments to an adapter, and return its names.

    The adapter adds names of its own to these, of objects that are equal on all ranks.

    Raises:
        AttachError: the option maps names to groups of ranks, which the adapter cannot extend.
    """
    replicated = more.pop("replicated", ())
    if isinstance(replicated, Mapping):
        refuse(
            "cannot attach: replicated tells of groups of ranks, which only ft.attach() takes; give a list of the names"
            " of objects that all ranks have alike"
        )
    return list(replicated)
