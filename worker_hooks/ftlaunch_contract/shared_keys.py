"""Keys of tensors that some of a job's ranks share out among them, and not all: `key@0-3` for the ranks 0 to 3.

Other ranks may have another tensor of the same name (two models that are each sharded over half of the ranks, the
stages of a pipeline): the key tells the two apart. A rank that saves a tensor as its own names itself alone, `key@3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_RUN = r"\d{1,9}-\d{1,9}(?::\d{1,9})?"
_FORM = re.compile(rf"(.*[^@]|)((?:@@)*)@({_RUN}(?:,{_RUN})*)", re.ASCII | re.DOTALL)  # `@` of a path is written `@@`


def own_key(key: str, rank: int) -> str:
    """The key under which a rank saves a tensor of which every rank saves its own."""
    return f"{key}@{rank}" if rank else key


def shared_key(key: str, ranks: Iterable[int]) -> str:
    """The key of a tensor that these ranks share out among them."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        last = found[-1] if found else []
        if len(last) == 1 or (last and rank - last[-1] == last[1] - last[0]):
            last.append(rank)
        else:
            found.append([rank])
    return f"{key}@{','.join(map(_run, found))}"


def _run(ranks: Sequence[int]) -> str:
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    return f"{ranks[0]}-{ranks[-1]}" if step == 1 else f"{ranks[0]}-{ranks[-1]}:{step}"


def parse(key: str) -> tuple[str, tuple[range, ...]] | None:
    """The key without the ranks, and the ranks; None where it names no ranks that share the tensor out."""
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
    """A name without ranks -> its key, of tensors that only one group of ranks has saved."""
    known, found = set(keys), dict[str, list[str]]()
    for key in sorted(known):
        if (named := parse(key)) is not None and named[0] not in known:
            found.setdefault(named[0], []).append(key)
    return {name: groups[0] for name, groups in found.items() if len(groups) == 1}


def is_of_another(key: str, rank: int) -> bool:
    """Whether a rank has saved the tensor as its own, or ranks share it out among them, and `rank` is none of these."""
    if (shared := parse(key)) is not None:
        return not has_rank(shared[1], rank)
    head, mark, number = key.rpartition("@")
    own = bool(mark) and number.isdecimal() and not (len(head) - len(head.rstrip("@"))) % 2
    return own and int(number) != rank


def has_rank(runs: Iterable[range], rank: int) -> bool:
    """Whether a rank is among those that share the tensor out."""
    return any(rank in run for run in runs)
