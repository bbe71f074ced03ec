"""The tensors of a rank's state: which there are, which this rank saves, and under which key.

There are three kinds of tensors. A *replicated* tensor (a parameter under DistributedDataParallel, or its optimizer
state) is the same on every rank, or on every rank of a group: one rank saves it, where all of these have agreed that
each of them holds it with the same values (replica_agreement.py); otherwise every rank saves its own. Of a *sharded*
tensor (a DTensor) every rank saves its shard. Of a shard that several ranks of a node hold the first one saves it,
where they have agreed likewise; otherwise each saves its own, under the key that it has anyway, and reads what it has
saved itself. Where not all ranks hold a replicated tensor, or share out a sharded one, its key names those that do.
Of any other tensor every rank saves *its own*: rank 0 under the plain key, rank r under `key@r`.

Each node by itself saves all that is replicated: its ranks agree among themselves, and share it out. What rank r saves
as its own is named by its number in the job.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.shared_keys import own_key, shared_key
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.dtypes import DTYPES, is_sharded, local_of
from ftlaunch_hooks.tensors.json_codec import Json, Path, StateError, join, show
from ftlaunch_hooks.tensors.memory_layout import Placed, Restored, describe
from ftlaunch_hooks.tensors.replica_agreement import Held, Replica, ReplicaAgreement
from ftlaunch_hooks.tensors.write_watch import WriteWatch


class Owner(NamedTuple):
    """Who saves a replicated tensor."""

    place: int
    """among the node's ranks"""
    group: tuple[int, ...] = ()
    """the ranks that hold the tensor; empty: all of the job"""


@dataclass(frozen=True, eq=False)
class TensorItem:
    """A tensor, or this rank's shard of one."""

    key: str
    tensor: Tensor  # local and detached; shares memory with what the training loop uses
    offset: tuple[int, ...]  # of the shard in the whole
    whole: tuple[int, ...]  # shape of the whole
    owned: bool  # whether this rank is the one that saves it
    group: str = "opt"  # the kind of file it belongs to, see layout.GROUPS
    settled: bool = False  # only the step of an attached optimizer changes it
    replica: str = ""  # the key on every rank, where all ranks of the job are to hold the same; else empty
    apart_key: str = ""  # the key under which this rank saves it where those that are to hold the same do not

    @property
    def chunk(self) -> Chunk:
        """The tensor as a file describes it."""
        dtype = DTYPES[self.tensor.dtype]
        return Chunk(self.key, dtype, tuple(self.tensor.shape), self.key, self.offset, self.whole)


@dataclass(frozen=True, eq=False)
class Collected:
    """A rank's state at one moment. `items` is the same list as last time when no tensor was replaced."""

    items: list[TensorItem]
    state: dict[str, Json]  # what is not a tensor: object name -> its tree
    outside: Sequence[str]  # keys that the state names, of DTensors on meshes without this rank: others save them
    watch: WriteWatch  # of the tensors that may be written to at any time, from the moment of collecting on


class _Known:
    """A tensor of the last collection, and the item that was made of it."""

    __slots__ = (
        "address", "is_watched", "item", "outside", "plain", "replica", "restored", "settled", "shape", "strides",
        "tensor",
    )  # fmt: skip

    def __init__(
        self, tensor: Tensor, item: TensorItem | None, settled: bool, replica: Replica | None, restored: Restored
    ) -> None:  # fmt: skip
        local = local_of(tensor)
        # random numbers and gradients: what we write by ourselves, or no thread can
        self.is_watched = local is tensor and item is not None and not settled and restored is not Restored.APART
        self.tensor, self.plain, self.settled, self.restored = tensor, local is tensor, settled, restored
        # `p.data = x` keeps the tensor object and changes these
        self.address, self.shape, self.strides = local.data_ptr(), local.shape, local.stride()
        self.item, self.replica = item, replica
        self.outside = item is None and _is_outside(tensor)


Taken = dict[str, _Known]


class Collector:
    """Collects a rank's tensors, step after step; a tensor that is the same as last time costs one comparison."""

    def __init__(self, rank: int, node: NodeRanks, agreement: ReplicaAgreement | None = None) -> None:
        """agreement: of the node's ranks on the replicated tensors; without one every rank saves its own."""
        self.rank, self.node = rank, node
        self._agreement = agreement
        self._agreed: Held = {}  # as `_items` has it
        self._found: list[tuple[str, TensorItem, Replica | None]] = []  # with the key without ranks
        self.tensors: list[tuple[str, Tensor]] = []
        """of the last collection, with their keys without ranks; the same list where no tensor was replaced"""
        self._held: Held = {}
        self._held_tensors: dict[str, Tensor] = {}
        self._items: list[TensorItem] = []
        self.outside: Sequence[str] = ()
        """see Collected; of the last collection"""
        self.watch = WriteWatch()
        """see Collected; of the last collection"""
        self._before: dict[str, _Known] = {}
        self._now: dict[str, _Known] = {}
        self._changed = True
        self._told: set[str] = set()
        self.layouts: Json = describe(())
        """how the tensors of the last collection lie in memory; the same object where no tensor was replaced"""

    def begin(self) -> None:
        """Start a collection."""
        self._now, self._changed = {}, False
        self.watch = WriteWatch()

    def finish(self) -> list[TensorItem]:
        """End the collection: all items in the order of `put`; the same list as last time if no tensor was replaced."""
        changed = self._changed or len(self._now) != len(self._before)
        self._before, self._changed = self._now, False
        if changed:
            self.outside = [key for key, known in self._now.items() if known.outside]
            self._found = [(key, one.item, one.replica) for key, one in self._now.items() if one.item is not None]
            self.tensors = [(key, item.tensor) for key, item, _ in self._found]
            self._held = {item.key: replica for _, item, replica in self._found if self._can_agree_on(replica)}
            self._held_tensors = {item.key: item.tensor for _, item, _ in self._found if item.key in self._held}
            self.layouts = describe(self.placed())
        agreed = self._agreement.agreed if self._agreement is not None else self._agreed
        if changed or agreed is not self._agreed:
            self._agreed = agreed
            self._items = [self._saved_by(item, replica) for _, item, replica in self._found]
        return self._items

    def placed(self) -> list[Placed]:
        """The tensors of the last collection, by their keys without a rank; without those that are sharded."""
        known = self._before.items()
        return [Placed(key, one.tensor, one.restored) for key, one in known if one.plain and one.item is not None]

    def agree(self, step: int, patience_seconds: float) -> bool:
        """Agree with all ranks, at the boundary of `step`, on what was collected last; see ReplicaAgreement.meet."""
        if self._agreement is None:
            return True
        return self._agreement.meet(step, self._held, self._held_tensors, patience_seconds)

    def take_apart(self) -> list[str]:
        """The attached objects of which ranks have been found to hold other values; see ReplicaAgreement."""
        return self._agreement.take_apart() if self._agreement is not None else []

    def _can_agree_on(self, replica: Replica | None) -> TypeGuard[Replica]:
        return replica is not None and (self._agreement is None or self._agreement.is_known(replica))

    def _saved_by(self, item: TensorItem, replica: Replica | None) -> TensorItem:
        """The item of a replicated tensor, or of this rank's own where not all hold it that should."""
        if replica is None or self._agreed.get(item.key) == replica:
            return item
        apart = self._agreement is not None and self._agreement.is_apart(replica)
        return replace(item, key=item.apart_key, owned=True, replica=item.replica if apart else "")

    def mark(self) -> int:
        """A place in the collection, for `since`."""
        return len(self._now)

    def since(self, mark: int) -> Taken:
        """The tensors that were put in since `mark`, for `again`."""
        return dict(islice(self._now.items(), mark, None))

    def addresses(self) -> set[int]:
        """Where the memory of the tensors begins that were put in so far."""
        return {known.address for known in self._now.values()}

    def again(self, taken: Taken) -> bool:
        """Put in tensors that are the same as last time. False, with nothing done, when one of the keys is taken."""
        if not taken.keys().isdisjoint(self._now):
            return False
        self._now.update(taken)
        for key, known in taken.items():
            if known.is_watched:
                self.watch.add(key, known.tensor)
        return True

    def put(
        self,
        path: Path,
        tensor: Tensor,
        group: str = "opt",
        *,
        owner: Owner | None = None,
        settled: bool = False,
        key: str | None = None,
        restored: Restored = Restored.ANEW,
    ) -> str:
        """Put a tensor in; returns its key without a rank.

        owner: of a replicated tensor, see share_out. settled: see TensorItem. key: instead of the path's.
        restored: what becomes of the tensor in a restore.
        Raises StateError for a tensor that cannot be saved, or a key that is already taken.
        """
        if key is None:
            key = join(path).replace("@", "@@")
        known = self._before.get(key)
        if known is None or known.tensor is not tensor or known.settled is not settled or _moved(known):
            item = self._make_item(path, key, tensor, owner)
            replica = None
            if item is not None:
                item = replace(item, group=group, settled=settled)
                replica = self._make_replica(str(path[0]), item, tensor, owner)
            known = _Known(tensor, item, settled, replica, restored)
            self._changed = True
            self._look_for_graph(path, key, tensor)
        if key in self._now:
            raise StateError(f"cannot save `{show(path)}`: there is another tensor with the key {key!r}")
        self._now[key] = known
        if known.is_watched:
            self.watch.add(key, known.tensor)
        return key

    def _look_for_graph(self, path: Path, key: str, tensor: Tensor) -> None:
        """Say it once where a tensor carries a graph over a boundary: only its values are saved."""
        if tensor.grad_fn is not None and key not in self._told:
            self._told.add(key)
            say(
                f"`{show(path)}` belongs to an autograd graph, which is not saved: where a later step goes back through"
                " it, a resumed run is not exact; detach() it at the end of a step"
            )

    def _make_item(self, path: Path, key: str, tensor: Tensor, owner: Owner | None) -> TensorItem | None:
        """None for an empty shard, unless there are other nodes."""
        if is_sharded(tensor):
            return _sharded_item(path, key, tensor, self.node)
        check_plain(path, tensor)
        apart_key = own_key(key, self.rank)
        if owner is None:
            key, owned = apart_key, True
        else:
            owned = owner.place == self.node.place(self.rank)
            key = shared_key(key, owner.group) if owner.group else key
        local, everywhere = tensor.detach(), owner is not None and not owner.group
        return TensorItem(
            key=key,
            tensor=local,
            offset=(0,) * local.dim(),
            whole=tuple(local.shape),
            owned=owned,
            replica=key if everywhere else "",
            apart_key=apart_key,
        )

    def _make_replica(self, part: str, item: TensorItem, tensor: Tensor, owner: Owner | None) -> Replica | None:
        """None for what no other rank of the node is to hold."""
        dtype = DTYPES[item.tensor.dtype]
        if not is_sharded(tensor):
            return None if owner is None else Replica(part, owner.place, dtype, item.whole, owner.group)
        from ftlaunch_hooks.tensors.dtensor import holders_of  # noqa: PLC0415 - see is_sharded

        holders = holders_of(tensor, self.node)
        if holders is None or self._agreement is None:
            return None
        first = next(ranks[0] for ranks in holders if self.rank in ranks)
        return Replica(part, self.node.place(first), dtype, tuple(item.tensor.shape), holders)


def _is_outside(tensor: Tensor) -> bool:
    """Whether it is a DTensor whose mesh this rank is not in."""
    if not is_sharded(tensor):
        return False
    from ftlaunch_hooks.tensors import dtensor  # noqa: PLC0415 - see is_sharded

    return dtensor.is_outside(tensor)


def _sharded_item(path: Path, key: str, tensor: Tensor, node: NodeRanks) -> TensorItem | None:
    from ftlaunch_hooks.tensors.dtensor import place_of  # noqa: PLC0415 - see is_sharded

    local = local_of(tensor).detach()
    check_plain(path, local)
    place = place_of(path, key, tensor, node)
    if place is None or (node.whole_job and local.numel() == 0 and tensor.numel() > 0):
        return None  # elsewhere this node's memory must tell of the tensor though all of it may lie on other nodes
    return TensorItem(
        key=place.key,
        tensor=local,
        offset=place.offset,
        whole=tuple(tensor.shape),
        owned=place.first,
        apart_key=place.key,
    )


def _moved(known: _Known) -> bool:
    local = known.tensor if known.plain else local_of(known.tensor)
    return (local.data_ptr(), local.shape, local.stride()) != (known.address, known.shape, known.strides)


def check_plain(path: Path, tensor: Tensor) -> None:
    """Raises StateError for a tensor whose values a tensor file cannot hold."""
    problem = None
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        problem = "a parameter that has no values yet (a lazy module before its first forward)"
    elif tensor.is_meta:
        problem = "a tensor on the meta device"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        problem = f"a tensor of layout {tensor.layout}" if not tensor.is_quantized else "a quantized tensor"
    elif tensor.dtype not in DTYPES:
        problem = f"a tensor of dtype {tensor.dtype}"
    elif type(tensor.detach()) is not Tensor:
        problem = f"a tensor of type {type(tensor).__name__}"
    if problem:
        raise StateError(f"cannot save `{show(path)}`: {problem}")


def share_out(sizes: Mapping[str, int], places: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The owner of each replicated tensor, which saves it: the largest first, each to the rank with the least so far.

    sizes: key -> bytes. places: key -> the places, among the node's ranks, of those that hold the tensor; an owner is
    one of them. Each group of places is shared out by itself, as its ranks do not know what other groups hold: the
    owners are the same on every rank of a group that asks with the same sizes.
    """
    loads: dict[tuple[int, ...], dict[int, int]] = {}
    owners = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load = loads.setdefault(tuple(places[key]), dict.fromkeys(places[key], 0))
        owners[key] = owner = min(load, key=lambda place: (load[place], place))
        load[owner] += sizes[key]
    return owners


def owner_of_slot(owner: Owner, slot: str, places: Sequence[int]) -> Owner:
    """The owner of an optimizer state tensor of a parameter that `owner` saves.

    places: among the node's ranks, of those that hold the parameter. The owner depends on the two names alone, so every
    tensor has one owner, also when ranks disagree on which state exists already. The slot's name spreads the state of
    one large parameter over the ranks.
    """
    number = places.index(owner.place) + zlib.crc32(slot.encode())
    return owner._replace(place=places[number % len(places)])
