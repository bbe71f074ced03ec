"""Finds which tensor of another library's checkpoint belongs to which name of a module. Pure.

Libraries put something in front of a module's names (`module.`, `state_dict.`, `model.`), and Megatron-core stacks the
tensors of equal layers into one without a layer number. A match must be complete: every name of the module is found,
and no other tensor lies beside those found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+\.")


@dataclass(frozen=True)
class Place:
    """The key at which a tensor is found and, for a tensor of stacked layers, the index in the first dimension."""

    key: str
    index: int | None = None


@dataclass(frozen=True)
class Match:
    """The names of a module that are found behind one prefix."""

    prefix: str
    places: Mapping[str, Place]
    surplus: Sequence[str]
    """keys behind the prefix for which the module has no name"""
    missing: Sequence[str]
    rivals: Sequence[str] = ()
    """other prefixes behind which the whole module is found just as well"""

    @property
    def whole(self) -> bool:
        """Whether every name is found and no key is left over."""
        return not self.surplus and not self.missing


def best_match(groups: Sequence[Sequence[str]], keys: Collection[str], name: str) -> Match:
    """Find the tensors of a module.

    Complete matches are preferred, and among those the ones whose prefix is the module's name. Without a complete
    match, the one that lacks the fewest names is returned.

    Args:
        groups: the module's names; those of tied tensors are in one group, of which one name is enough.
        keys: the checkpoint's keys.
        name: the name under which the module is attached.
    """
    matches = [_match(groups, keys, prefix) for prefix in _prefixes(groups, keys)]
    complete = [match for match in matches if match.whole]
    named = [match for match in complete if _is_named(match.prefix, name)]
    best, *rivals = named or complete or [_nearest(matches)]
    return replace(best, rivals=[match.prefix for match in rivals])


def _nearest(matches: Sequence[Match]) -> Match:
    return min(matches, key=lambda match: (len(match.missing), match.prefix))


def _is_named(prefix: str, name: str) -> bool:
    return f".{prefix}".endswith(f".{name}.")


def _prefixes(groups: Sequence[Sequence[str]], keys: Iterable[str]) -> list[str]:
    """Return the prefixes in front of any name of the first two groups, and the empty prefix."""
    wanted = {form for names in groups[:2] for name in names for form in (name, _LAYER_NUMBER.sub("", name, count=1))}
    found = {""}
    for key in keys:
        found |= {key[: -len(name)] for name in wanted if key.endswith(f".{name}")}
    return sorted(found)


def _match(groups: Sequence[Sequence[str]], keys: Collection[str], prefix: str) -> Match:
    places: dict[str, Place] = {}
    missing: list[str] = []
    for names in groups:
        found = [place for name in names if (place := _place(prefix, name, keys)) is not None]
        if found:
            places |= dict.fromkeys(names, found[0])
        else:
            missing.append(names[0])
    known = {f"{prefix}{name}" for names in groups for name in names} | {place.key for place in places.values()}
    surplus = sorted(key for key in keys if key.startswith(prefix) and key not in known)
    return Match(prefix=prefix, places=places, surplus=surplus, missing=missing)


def _place(prefix: str, name: str, keys: Collection[str]) -> Place | None:
    if (key := f"{prefix}{name}") in keys:
        return Place(key)
    if (number := _LAYER_NUMBER.search(name)) is not None:
        stacked = f"{prefix}{name[: number.start()]}{name[number.end() :]}"
        if stacked in keys:
            return Place(stacked, int(number.group()[:-1]))
    return None
