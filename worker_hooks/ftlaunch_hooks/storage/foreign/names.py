"""Which tensor of another library's checkpoint belongs to which name of a module. Pure.

Libraries put something in front of a module's names (`module.`, `state_dict.`, `model.`), and Megatron-core stacks the
tensors of equal layers into one without their number. What fits must fit wholly: every name of the module is found, and
nothing beside those is in the same place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_NUMBER = re.compile(r"(?<=\.)\d+\.")  # of a layer


@dataclass(frozen=True)
class Place:
    """Where a tensor is found: a key, and for one that is stacked its index in the first dimension."""

    key: str
    index: int | None = None


@dataclass(frozen=True)
class Match:
    """Every name of a module, found behind one prefix."""

    prefix: str
    places: Mapping[str, Place]
    surplus: Sequence[str]
    """keys behind the prefix that the module has no name for"""
    missing: Sequence[str]
    rivals: Sequence[str] = ()
    """other prefixes behind which the module is found wholly, and as good as this one"""

    @property
    def whole(self) -> bool:
        """Whether nothing is missing and nothing is left."""
        return not self.surplus and not self.missing


def best_match(groups: Sequence[Sequence[str]], keys: Collection[str], name: str) -> Match:
    """Where the tensors of a module are.

    groups: its names; those of tied tensors are in one group, of which one name is enough. name: of the module.
    Whole matches come first, of those the ones whose prefix is the module's name; else the one that lacks the least.
    """
    matches = [_match(groups, keys, prefix) for prefix in _prefixes(groups, keys)]
    whole = [one for one in matches if one.whole]
    first, *others = [one for one in whole if _is_named(one.prefix, name)] or whole or [_nearest(matches)]
    return replace(first, rivals=[one.prefix for one in others])


def _nearest(matches: Sequence[Match]) -> Match:
    return min(matches, key=lambda one: (len(one.missing), one.prefix))


def _is_named(prefix: str, name: str) -> bool:
    return f".{prefix}".endswith(f".{name}.")


def _prefixes(groups: Sequence[Sequence[str]], keys: Iterable[str]) -> list[str]:
    """What is in front of the names of any of the first groups, each once; at least nothing."""
    wanted = {form for names in groups[:2] for name in names for form in (name, _NUMBER.sub("", name, count=1))}
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
    return Match(prefix, places, surplus, missing)


def _place(prefix: str, name: str, keys: Collection[str]) -> Place | None:
    if (key := f"{prefix}{name}") in keys:
        return Place(key)
    if (number := _NUMBER.search(name)) is not None:
        stacked = f"{prefix}{name[: number.start()]}{name[number.end() :]}"
        if stacked in keys:
            return Place(stacked, int(number.group()[:-1]))
    return None
