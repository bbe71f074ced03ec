"""Keys of tensors that only some of a job's ranks hold: `key@0-3` belongs to the ranks 0 to 3, as shards or replicas.

Other ranks may hold another tensor of the same name (two models that are each sharded over half of the ranks, or the
stages of a pipeline), and the ranks in the key tell the two apart. A tensor of which every rank has its own value gets
the rank alone: `key@3`, and plain `key` for rank 0. Pure functions; writers and readers of checkpoints both call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_RUN = r"\d{1,9}-\d{1,9}(?::\d{1,9})?"
_FORM = re.compile(rf"(.*[^@]|)((?:@@)*)@({_RUN}(?:,{_RUN})*)", re.ASCII | re.DOTALL)  # `@@` is an `@` of the name


def own_key(key: str, rank: int) -> str:
    """Return the key under which `rank` saves a tensor of which every rank has its own value."""
    return f"{key}@{rank}" if rank else key


def shared_key(key: str, ranks: Iterable[int]) -> str:
    """Return the key of a tensor that these ranks hold together, as shards or as replicas."""
    runs: list[list[int]] = []  # the ranks of a run lie at equal distances
    for rank in sorted(ranks):
        last = runs[-1] if runs else []
        if len(last) == 1 or (last and rank - last[-1] == last[1] - last[0]):
            last.append(rank)
        else:
            runs.append([rank])
    return f"{key}@{','.join(map(_format_run, runs))}"


def _format_run(ranks: Sequence[int]) -> str:
    """Return `FIRST-LAST`, or `FIRST-LAST:STEP` where ranks are left out between."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    return f"{ranks[0]}-{ranks[-1]}" if step == 1 else f"{ranks[0]}-{ranks[-1]}:{step}"


def parse(key: str) -> tuple[str, tuple[range, ...]] | None:
    """Return the key without its ranks, and the ranks; None for a key that names no group of ranks."""
    found = _FORM.fullmatch(key)
    if found is None:
        return None
    runs = []
    for run in found[3].split(","):
        ends, _, step = run.partition(":")
        first, _, last = ends.partition("-")
        runs.append(range(int(first), int(last) + 1, max(int(step or 1), 1)))
    return found[1] + found[2], tuple(runs)


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """Map plain names to keys, for tensors that exactly one group of ranks has saved.

    A plain name that is itself a key is left out.
    """
    known = set(keys)
    keys_by_name: dict[str, list[str]] = {}
    for key in sorted(known):
        if (parsed := parse(key)) is not None and parsed[0] not in known:
            keys_by_name.setdefault(parsed[0], []).append(key)
    return {name: group_keys[0] for name, group_keys in keys_by_name.items() if len(group_keys) == 1}


def is_of_another(key: str, rank: int) -> bool:
    """Whether a tensor belongs only to other ranks: one of them saved its own, or they are a group without `rank`."""
    if (shared := parse(key)) is not None:
        return not has_rank(shared[1], rank)
    head, mark, number = key.rpartition("@")
    own = bool(mark) and number.isdecimal() and not (len(head) - len(head.rstrip("@"))) % 2
    return own and int(number) != rank


def has_rank(runs: Iterable[range], rank: int) -> bool:
    """Whether `rank` is among the ranks of `runs`, as `parse` returns them."""
    return any(rank in run for run in runs)
