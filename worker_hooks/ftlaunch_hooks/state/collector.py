"""Collects the tensors of a rank's state, and decides which of them this rank saves, and under which keys.

There are three kinds of tensors:

- A *replicated* tensor (a parameter under DistributedDataParallel, or its optimizer state) is the same on every rank,
  or on every rank of a group. One rank saves the tensor if all these ranks have agreed that each holds the same values
  (replica_agreement.py). Otherwise every rank saves its own tensor.
- Of a *sharded* tensor (a DTensor) every rank saves its shard. If several ranks of a node hold a shard, the first of
  them saves it, provided that they have agreed as above. Otherwise each saves its own shard under the same key, and
  reads the shard that it has saved itself.
- Any other tensor is a rank's *own*. Rank 0 saves it under the plain key, rank r under `key@r`.

If not all ranks of the job hold a replicated or sharded tensor, the key names the ranks that do.

Each node saves all replicated tensors by itself: the ranks of the node agree, and share the tensors out. A rank's own
tensors are named by the rank's number in the job.

RankState collects at the boundaries between steps, in the thread that trains.
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
    """The rank that saves a replicated tensor, and the ranks that hold it."""

    place: int
    """place of the saving rank among the node's ranks"""
    group: tuple[int, ...] = ()
    """the ranks of the job that hold the tensor; empty for all ranks"""


@dataclass(frozen=True, eq=False)
class TensorItem:
    """A tensor, or this rank's shard of a tensor."""

    key: str
    tensor: Tensor
    """local and detached; shares memory with the tensor that the training loop uses"""
    offset: tuple[int, ...]
    """offset of the shard in the whole tensor, in each dimension"""
    whole: tuple[int, ...]
    """shape of the whole tensor"""
    owned: bool
    """whether this rank saves the tensor"""
    group: str = "opt"
    """the kind of file that the tensor belongs to, one of layout.GROUPS"""
    settled: bool = False
    """whether only the step of an attached optimizer changes the tensor"""
    replica: str = ""
    """the key on every rank, if all ranks of the job should hold the same values; otherwise empty"""
    apart_key: str = ""
    """the key under which this rank saves the tensor if ranks that should hold the same values do not"""

    @property
    def chunk(self) -> Chunk:
        """The description of the tensor in a file."""
        dtype = DTYPES[self.tensor.dtype]
        return Chunk(
            name=self.key, dtype=dtype, shape=tuple(self.tensor.shape), key=self.key, offset=self.offset,
            whole=self.whole,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Collected:
    """A rank's state at one moment. `items` is the same list as last time if no tensor was replaced."""

    items: list[TensorItem]
    state: dict[str, Json]
    """everything but tensors: a tree for each object, by the object's name"""
    outside: Sequence[str]
    """keys, named in `state`, of DTensors whose meshes are without this rank; other ranks save these"""
    watch: WriteWatch
    """watches the tensors that may be written to at any time, from the moment of collection on"""


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
        # Tensors APART are random numbers and gradients: we write these ourselves, or no other thread can.
        self.is_watched = local is tensor and item is not None and not settled and restored is not Restored.APART
        self.tensor = tensor
        self.plain = local is tensor
        self.settled = settled
        self.restored = restored
        # `p.data = x` keeps the tensor object and changes its address, shape or strides.
        self.address = local.data_ptr()
        self.shape = local.shape
        self.strides = local.stride()
        self.item = item
        self.replica = replica
        self.outside = item is None and _is_outside(tensor)


KnownTensors = dict[str, _Known]
"""tensors of a collection, by key"""


class Collector:
    """Collects a rank's tensors, step after step. A tensor that is the same as last time costs one comparison."""

    def __init__(self, rank: int, node: NodeRanks, agreement: ReplicaAgreement | None = None) -> None:
        """Begin without a collection.

        Args:
            rank: this rank's number in the job.
            node: the ranks of this rank's node.
            agreement: the agreement of the node's ranks on replicated tensors. With None every rank saves its own.
        """
        self.rank = rank
        self.node = node
        self._agreement = agreement
        self._agreed: Held = {}
        """the agreement for which `_items` were made"""
        self._found: list[tuple[str, TensorItem, Replica | None]] = []
        """tensors of the last collection, with their keys without ranks"""
        self.tensors: list[tuple[str, Tensor]] = []
        """tensors of the last collection, with their keys without ranks; the same list if no tensor was replaced"""
        self._held: Held = {}
        """replicas of the last collection that the ranks can agree on, by key"""
        self._held_tensors: dict[str, Tensor] = {}
        """the tensors of `_held`"""
        self._items: list[TensorItem] = []
        self.outside: Sequence[str] = ()
        """`Collected.outside` of the last collection"""
        self.watch = WriteWatch()
        """`Collected.watch` of the last collection"""
        self._before: dict[str, _Known] = {}
        """tensors of the last collection, by key without a rank"""
        self._now: dict[str, _Known] = {}
        """tensors of the collection under way"""
        self._has_changed = True
        """whether a tensor of the collection under way is new"""
        self._warned_of: set[str] = set()
        """keys of tensors with a graph of which the user was warned"""
        self.layouts: Json = describe(())
        """the layout in memory of the last collection's tensors; the same object if no tensor was replaced"""

    def begin(self) -> None:
        """Start a collection."""
        self._now = {}
        self._has_changed = False
        self.watch = WriteWatch()

    def finish(self) -> list[TensorItem]:
        """End the collection.

        Returns:
            All items in the order of `put`; the same list as last time if no tensor was replaced.
        """
        has_changed = self._has_changed or len(self._now) != len(self._before)
        self._before = self._now
        self._has_changed = False
        if has_changed:
            self.outside = [key for key, known in self._now.items() if known.outside]
            self._found = [
                (key, known.item, known.replica) for key, known in self._now.items() if known.item is not None
            ]
            self.tensors = [(key, item.tensor) for key, item, _ in self._found]
            self._held = {item.key: replica for _, item, replica in self._found if self._can_agree_on(replica)}
            self._held_tensors = {item.key: item.tensor for _, item, _ in self._found if item.key in self._held}
            self.layouts = describe(self.placed())
        agreed = self._agreement.agreed if self._agreement is not None else self._agreed
        if has_changed or agreed is not self._agreed:
            self._agreed = agreed
            self._items = [self._saved_by(item, replica) for _, item, replica in self._found]
        return self._items

    def placed(self) -> list[Placed]:
        """Return the tensors of the last collection that are not sharded, with their keys without a rank."""
        return [
            Placed(key, known.tensor, known.restored)
            for key, known in self._before.items()
            if known.plain and known.item is not None
        ]

    def agree(self, step: int, patience_seconds: float) -> bool:
        """Agree with all ranks of the node on the replicated tensors of the last collection.

        Args:
            step: the step at whose boundary all ranks are.
            patience_seconds: time to wait for another rank.

        Returns:
            False if this rank must take no snapshot of `step`.
        """
        if self._agreement is None:
            return True
        return self._agreement.meet(
            step, held=self._held, tensors=self._held_tensors, patience_seconds=patience_seconds
        )

    def pop_differing(self) -> list[str]:
        """Return the attached objects whose values differ between ranks, and that were not returned before."""
        return self._agreement.pop_differing() if self._agreement is not None else []

    def _can_agree_on(self, replica: Replica | None) -> TypeGuard[Replica]:
        return replica is not None and (self._agreement is None or self._agreement.is_known(replica))

    def _saved_by(self, item: TensorItem, replica: Replica | None) -> TensorItem:
        """Return the item as this rank saves it: as a replica if the ranks have agreed, otherwise as its own tensor."""
        if replica is None or self._agreed.get(item.key) == replica:
            return item
        apart = self._agreement is not None and self._agreement.is_apart(replica)
        return replace(item, key=item.apart_key, owned=True, replica=item.replica if apart else "")

    def mark(self) -> int:
        """Return the present position in the collection, for `since`."""
        return len(self._now)

    def since(self, mark: int) -> KnownTensors:
        """Return the tensors that were added since `mark`, for `add_unchanged`."""
        return dict(islice(self._now.items(), mark, None))

    def addresses(self) -> set[int]:
        """Return the addresses of the memory of all tensors that were added so far."""
        return {known.address for known in self._now.values()}

    def add_unchanged(self, tensors: KnownTensors) -> bool:
        """Add tensors that are the same as last time. Return False, and add nothing, if one of the keys is in use."""
        if not tensors.keys().isdisjoint(self._now):
            return False
        self._now.update(tensors)
        for key, known in tensors.items():
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
        restored: Restored = Restored.REPLACED,
    ) -> str:
        """Add a tensor to the collection.

        Args:
            path: path of the tensor in the state.
            tensor: the tensor.
            group: `TensorItem.group`.
            owner: the owner of a replicated tensor, as `share_out` decides; None for a tensor that is not replicated.
            settled: `TensorItem.settled`.
            key: key of the tensor, if not made from the path.
            restored: the way in which a restore treats the tensor.

        Returns:
            The key of the tensor without a rank.

        Raises:
            StateError: the tensor cannot be saved, or the key is in use.
        """
        if key is None:
            key = join(path).replace("@", "@@")
        known = self._before.get(key)
        if known is None or known.tensor is not tensor or known.settled is not settled or _moved(known):
            item = self._make_item(path, key=key, tensor=tensor, owner=owner)
            replica = None
            if item is not None:
                item = replace(item, group=group, settled=settled)
                replica = self._make_replica(str(path[0]), item=item, tensor=tensor, owner=owner)
            known = _Known(tensor, item=item, settled=settled, replica=replica, restored=restored)
            self._has_changed = True
            self._warn_of_graph(path, key, tensor)
        if key in self._now:
            raise StateError(f"cannot save `{show(path)}`: there is another tensor with the key {key!r}")
        self._now[key] = known
        if known.is_watched:
            self.watch.add(key, known.tensor)
        return key

    def _warn_of_graph(self, path: Path, key: str, tensor: Tensor) -> None:
        """Warn the user once if a tensor carries an autograd graph over a boundary, because only values are saved."""
        if tensor.grad_fn is not None and key not in self._warned_of:
            self._warned_of.add(key)
            say(
                f"`{show(path)}` belongs to an autograd graph, which is not saved: where a later step goes back through"
                " it, a resumed run is not exact; detach() it at the end of a step"
            )

    def _make_item(self, path: Path, key: str, tensor: Tensor, owner: Owner | None) -> TensorItem | None:
        """Make the item of a tensor. Return None for an empty shard, unless the job has other nodes."""
        if is_sharded(tensor):
            return _sharded_item(path, key=key, tensor=tensor, node=self.node)
        check_plain(path, tensor)
        apart_key = own_key(key, self.rank)
        if owner is None:
            key = apart_key
            owned = True
        else:
            owned = owner.place == self.node.place(self.rank)
            key = shared_key(key, owner.group) if owner.group else key
        local = tensor.detach()
        is_everywhere = owner is not None and not owner.group
        return TensorItem(
            key=key,
            tensor=local,
            offset=(0,) * local.dim(),
            whole=tuple(local.shape),
            owned=owned,
            replica=key if is_everywhere else "",
            apart_key=apart_key,
        )

    def _make_replica(self, part: str, item: TensorItem, tensor: Tensor, owner: Owner | None) -> Replica | None:
        """Describe a tensor for the agreement. Return None if no other rank of the node should hold the same values."""
        dtype = DTYPES[item.tensor.dtype]
        if not is_sharded(tensor):
            if owner is None:
                return None
            return Replica(part=part, owner=owner.place, dtype=dtype, shape=item.whole, group=owner.group)
        from ftlaunch_hooks.tensors.dtensor import holders_of  # noqa: PLC0415 - see is_sharded

        holders = holders_of(tensor, self.node)
        if holders is None or self._agreement is None:
            return None
        first = next(ranks[0] for ranks in holders if self.rank in ranks)
        return Replica(
            part=part,
            owner=self.node.place(first),
            dtype=dtype,
            shape=tuple(item.tensor.shape),
            group=holders,
        )


def _is_outside(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor whose mesh is without this rank."""
    if not is_sharded(tensor):
        return False
    from ftlaunch_hooks.tensors import dtensor  # noqa: PLC0415 - see is_sharded

    return dtensor.is_outside(tensor)


def _sharded_item(path: Path, key: str, tensor: Tensor, node: NodeRanks) -> TensorItem | None:
    from ftlaunch_hooks.tensors.dtensor import place_of  # noqa: PLC0415 - see is_sharded

    local = local_of(tensor).detach()
    check_plain(path, local)
    place = place_of(path, key=key, tensor=tensor, node=node)
    # With several nodes an empty shard stays: this node's memory must name a tensor that other nodes may hold.
    if place is None or (node.whole_job and local.numel() == 0 and tensor.numel() > 0):
        return None
    return TensorItem(
        key=place.key,
        tensor=local,
        offset=place.offset,
        whole=tuple(tensor.shape),
        owned=place.first,
        replica=place.key if place.is_replica else "",
        apart_key=place.key,
    )


def _moved(known: _Known) -> bool:
    local = known.tensor if known.plain else local_of(known.tensor)
    return (local.data_ptr(), local.shape, local.stride()) != (known.address, known.shape, known.strides)


def check_plain(path: Path, tensor: Tensor) -> None:
    """Raise StateError for a tensor whose values a tensor file cannot hold."""
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
    """Choose the rank that saves each replicated tensor: the largest tensor first, by the rank with the least bytes.

    Each group of places is shared out by itself, because its ranks do not know which tensors other groups hold. All
    ranks of a group that call with the same sizes get the same result.

    Args:
        sizes: bytes of the tensors, by key.
        places: places, among the node's ranks, of the ranks that hold a tensor, by key.

    Returns:
        The place of the saving rank, by key.
    """
    loads: dict[tuple[int, ...], dict[int, int]] = {}
    owners = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load = loads.setdefault(tuple(places[key]), dict.fromkeys(places[key], 0))
        owner = min(load, key=lambda place: (load[place], place))
        owners[key] = owner
        load[owner] += sizes[key]
    return owners


def owner_of_slot(owner: Owner, slot: str, places: Sequence[int]) -> Owner:
    """Choose the rank that saves a tensor of an optimizer's state.

    The result depends only on the arguments, so that every tensor has one owner even while ranks disagree on which
    state exists already. The slot's name spreads the state of a large parameter over the ranks.

    Args:
        owner: the owner of the parameter.
        slot: name of the tensor in the parameter's state.
        places: places, among the node's ranks, of the ranks that hold the parameter.
    """
    number = places.index(owner.place) + zlib.crc32(slot.encode())
    return owner._replace(place=places[number % len(places)])
