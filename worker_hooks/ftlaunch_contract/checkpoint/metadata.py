"""Checks and joins the contents of metadata.json and common.json, which come from a disk that may be damaged.

Pure functions. The writer joins what ranks have saved; `verify` checks what it reads. Everything that is wrong is a
ValueError whose message is a part of a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ftlaunch_contract import shared_keys
from ftlaunch_contract.checkpoint.layout import ENDS, WORDS
from ftlaunch_contract.files.untrusted_json import HEX, extents, mapping, plain_name, text, whole


def check_part(offset: tuple[int, ...], shape: tuple[int, ...], whole_shape: tuple[int, ...], what: str) -> None:
    """Check that a part of `shape` at `offset` lies inside the whole tensor. Raises ValueError, which names `what`."""
    is_inside = len(offset) == len(shape) == len(whole_shape) and all(
        begin + extent <= limit for begin, extent, limit in zip(offset, shape, whole_shape, strict=True)
    )
    if not is_inside:
        raise ValueError(f"{what} reaches beyond its tensor")


@dataclass(frozen=True)
class Trainings:
    """The successive trainings of one process, up to the one that a snapshot was taken in."""

    ends: tuple[int, ...] = ()
    """the steps at which the earlier trainings ended"""
    words: tuple[str, ...] = ("",)
    """what the script calls each earlier training, and the one of the snapshot; all different"""

    def up_to(self, number: int) -> Trainings:
        """Return the trainings up to the one with this number; the first is 0."""
        return Trainings(self.ends[:number], self.words[: number + 1])

    def followed_by(self, word: str, end: int) -> Trainings:
        """Return these trainings, the last of which has ended at step `end`, and another one called `word`."""
        return Trainings((*self.ends, end), (*self.words, word))

    def entries(self) -> dict[str, list[int] | list[str]]:
        """Return the entries for metadata.json and common.json; none for a process with one training without a word."""
        return {} if self == Trainings() else {ENDS: list(self.ends), WORDS: list(self.words)}


def trainings(found: Mapping[str, Any]) -> Trainings:
    """Return the trainings in metadata.json or in a slot's common.json.

    Raises:
        ValueError: the entries are not what `Trainings.entries` writes.
    """
    ends = found.get(ENDS, [])
    words = found.get(WORDS, [""])
    if not isinstance(ends, list) or not isinstance(words, list):
        raise ValueError(f"`{ENDS}` or `{WORDS}` is not a list")
    known = Trainings(
        tuple(whole(end, f"an entry of `{ENDS}`") for end in ends),
        tuple(text(word, f"an entry of `{WORDS}`") for word in words),
    )
    if not len(set(words)) == len(words) == len(ends) + 1:
        raise ValueError(f"`{WORDS}` has no word for each training")
    return known


def check_metadata(metadata: Mapping[str, Any], dtypes: Collection[str], block: int) -> None:
    """Check that metadata.json has the form that this version writes.

    Args:
        metadata: the parsed file.
        dtypes: names of the known dtypes.
        block: bytes that one digest covers.

    Raises:
        ValueError: it has another form.
    """
    whole(metadata.get("step"), "`step`")
    whole(metadata.get("world_size"), "`world_size`", 1)
    trainings(metadata)
    files = mapping(metadata.get("files"), "`files`")
    for name, entry in files.items():
        plain_name(name)
        size = whole(mapping(entry, f"the entry of {name}").get("bytes"), f"`bytes` of {name}")
        digests = entry.get("xxh3_128")
        if not isinstance(digests, list) or len(digests) != max(1, -(-size // block)):
            raise ValueError(f"`xxh3_128` of {name} is not a list of one digest per {block >> 20} MiB")
        if not all(isinstance(digest, str) and HEX.fullmatch(digest) for digest in digests):
            raise ValueError(f"`xxh3_128` of {name} holds something else")
    for key, tensor in mapping(metadata.get("tensors"), "`tensors`").items():
        _check_tensor(key[:80], tensor, dtypes=dtypes, files=files)


def _check_tensor(key: str, tensor: object, dtypes: Collection[str], files: Collection[str]) -> None:
    found = mapping(tensor, f"the tensor {key}")
    if text(found.get("dtype"), f"`dtype` of {key}") not in dtypes:
        raise ValueError(f"`dtype` of {key} is not known")
    shape = extents(found.get("shape"), f"`shape` of {key}")
    chunks = found.get("chunks")
    if not isinstance(chunks, list) or not chunks:
        raise ValueError(f"{key} has no chunks")
    for chunk in chunks:
        part = mapping(chunk, f"a chunk of {key}")
        offset = extents(part.get("offset"), f"the offset of a chunk of {key}")
        part_shape = extents(part.get("shape"), f"the shape of a chunk of {key}")
        check_part(offset=offset, shape=part_shape, whole_shape=shape, what=f"a chunk of {key}")
        text(part.get("name"), f"the name of a chunk of {key}")
        if text(part.get("file"), f"the file of a chunk of {key}") not in files:
            raise ValueError(f"a chunk of {key} lies in no file of the checkpoint")


def check_common(common: object, step: int) -> None:
    """Check that common.json has the form that this version writes, and is of `step`. Raises ValueError."""
    found = mapping(common, "it")
    if whole(found.get("step"), "`step`") != step:
        raise ValueError(f"it is of step {found['step']}, not {step}")
    whole(found.get("world_size"), "`world_size`", 1)
    whole(found.get("consumed_samples"), "`consumed_samples`")
    mapping(found.get("state"), "`state`")
    for rank, state in mapping(found.get("ranks"), "`ranks`").items():
        mapping(state, f"the state of rank {rank[:20]}")


def join_tensors(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the entry `tensors` of metadata.json, from the chunks that each rank has written, rank by rank.

    A chunk that several ranks have written (each node saves everything that is replicated) is listed once, in the file
    of the lowest rank.

    Raises:
        ValueError: two ranks have written parts of different tensors under one key.
    """
    tensors: dict[str, Any] = {}
    named: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()
    for rank, chunks in enumerate(ranks):
        for chunk in chunks:
            key = chunk["key"]
            dtype = chunk["dtype"]
            shape = chunk["whole"]
            tensor = tensors.setdefault(key, {"dtype": dtype, "shape": shape, "chunks": []})
            if (tensor["dtype"], tensor["shape"]) != (dtype, shape):
                raise ValueError(
                    f"rank {rank} has saved the tensor {key} as {dtype} of shape {shape}, a rank before it as "
                    f"{tensor['dtype']} of shape {tensor['shape']}"
                )
            place = key, tuple(chunk["offset"]), tuple(chunk["shape"])
            if place not in named:
                named.add(place)
                tensor["chunks"].append({field: chunk[field] for field in ("offset", "shape", "file", "name")})
    return tensors


def check_saved(
    states: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any], outside: Sequence[Collection[str]]
) -> None:
    """Check that every tensor that a rank's state names was saved, and every tensor whole.

    Args:
        states: everything but tensors, rank by rank, as `json_codec.encode` writes it.
        tensors: the entry of metadata.json.
        outside: rank by rank, the keys that the rank's state names although only other ranks have the tensor.

    Raises:
        ValueError: a tensor is missing or incomplete.
    """
    named = list(_named(states[0]))
    shared = _shared(tensors)
    for rank, state in enumerate(states):
        for key in named if state == states[0] else _named(state):
            groups = shared.get(key, ())
            own = key in tensors or f"{key}@{rank}" in tensors
            others = bool(groups) and key in outside[rank]
            if not (own or others or any(shared_keys.has_rank(ranks, rank) for ranks in groups)):
                raise ValueError(f"the state of rank {rank} names the tensor {key}, which no rank has saved")
    for key, tensor in tensors.items():
        sizes = {tuple(chunk["offset"]): prod(chunk["shape"]) for chunk in tensor["chunks"]}
        saved = sum(sizes.values())
        if saved != prod(tensor["shape"]):
            raise ValueError(f"of the tensor {key} the ranks have saved {saved} values, not {prod(tensor['shape'])}")


def _shared(tensors: Iterable[str]) -> dict[str, list[tuple[range, ...]]]:
    """Map keys without ranks to the groups of ranks that share a tensor of that name."""
    found: dict[str, list[tuple[range, ...]]] = {}
    for key in tensors:
        if (shared := shared_keys.parse(key)) is not None:
            found.setdefault(shared[0], []).append(shared[1])
    return found


def _named(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of all tensors that a rank's state names.

    A module lists its tensors without its own name, which is put in front here.
    """
    for name, part in state.items():
        if isinstance(part, dict) and part.get("kind") == "module":
            yield from (f"{name}.{tensor}".replace("@", "@@") for tensor in part["tensors"])
        if isinstance(part, dict) and part.get("kind") == "gradients":
            yield from (f"{name}.{tensor}".replace("@", "@@") for tensor in part["dense"])
    left: list[Any] = [state]
    while left:
        tree = left.pop()
        if isinstance(tree, list):
            left += tree
        elif isinstance(tree, dict):
            tag = next(iter(tree), "")
            if tag in ("__tensor__", "__array__"):
                yield tree[tag]
            else:
                left += tree.values()
