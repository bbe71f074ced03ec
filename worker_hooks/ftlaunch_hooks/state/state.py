"""A rank's state: all attached objects, collected as tensors and JSON, and restored from them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ftlaunch_contract.node_ranks import NodeRanks, one_node
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state import compiled_shapes, gradients, loop_variables
from ftlaunch_hooks.state.anew import Anew
from ftlaunch_hooks.state.attached import LOOPS, RNG, TAKEN, check_attachable, make_parts
from ftlaunch_hooks.state.collector import Collected, Collector, share_out
from ftlaunch_hooks.state.compiled_shapes import CompiledShapes
from ftlaunch_hooks.state.loop_variables import LoopVariables, RestoredVariables
from ftlaunch_hooks.state.module import ModulePart
from ftlaunch_hooks.state.optimizer import OptimizerPart, tensor_keys
from ftlaunch_hooks.state.packed import pack, unpack
from ftlaunch_hooks.state.part_digests import PartDigests, find_differing
from ftlaunch_hooks.state.parts import Names, few
from ftlaunch_hooks.state.random_numbers import rng
from ftlaunch_hooks.state.random_numbers.generators import OwnGenerators, kind_of
from ftlaunch_hooks.state.structure import Structure
from ftlaunch_hooks.storage import saved_digests
from ftlaunch_hooks.storage.own_copies import check_alike
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.storage.saved_tensors import SavedTensors
from ftlaunch_hooks.tensors import memory_layout
from ftlaunch_hooks.tensors.ddp import bucket_layout
from ftlaunch_hooks.tensors.ddp.bucket_layout import BucketLayouts
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, StateError, decode, encode, join
from ftlaunch_hooks.tensors.memory_layout import Restored, SavedLayout
from ftlaunch_hooks.tensors.replica_agreement import Group, ReplicaAgreement
from ftlaunch_hooks.tensors.replicated import Said, replicated_parameters

__all__ = ["Choices", "Collected", "RankState", "StateError"]

_IN_STEPS = "in_steps"
_APART = (
    "the ranks hold other values of {names}, of which all ranks are to hold the same (DistributedDataParallel,"
    " replicated=, or Replicate() of a DTensor): from here on each rank saves its own, and only as many ranks can"
    " resume from it"
)


@dataclass(frozen=True)
class Choices:
    """What attach() was told of the objects besides their names."""

    frozen: Collection[str]
    replicated: Said
    anew: Mapping[str, str]
    training: str
    stands_for: int | None = None
    keep: bool = True
    """whether variables of the training loop are saved and put back"""
    ignore: Collection[str] = ()
    """names of variables that are neither saved nor spoken of"""


class RankState:
    """The attached objects of one rank."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        frozen: Collection[str],
        rank: int,
        world_size: int,
        peers: Sequence[Page] = (),
        found: Mapping[str, Any] | None = None,
        node: NodeRanks | None = None,
        replicated: Said = (),
        anew: Mapping[str, str] | None = None,
        stands_for: int | None = None,
    ) -> None:
        """objects: name -> anything with state_dict() and load_state_dict(). frozen: names left alone.

        peers: the pages of the node's ranks, in which they agree on what is replicated; without pages nothing counts
        as it. found: generators that the script has made and not attached, see generators.find. node: the ranks that
        are on this rank's node, all of them if not given. replicated, anew, stands_for: see attach().
        Raises StateError for an object without the two methods, or a name that is not one.
        """
        check_attachable(objects, frozen)
        self.rank, self.world_size, self.node = rank, world_size, node or one_node(world_size)
        self.stands_for = stands_for
        self.optimizers = [o for o in objects.values() if isinstance(o, torch.optim.Optimizer)]
        kept = {name: target for name, target in objects.items() if name not in frozen}
        attached = {name: kept.pop(name) for name in list(kept) if kind_of(kept[name]) is not None}
        reached = {path: one for path, one in (found or {}).items() if path.partition(".")[0] not in frozen}
        self._names = Names(replicated_parameters(rank, world_size, objects, replicated), kept, replicated, self.node)
        self._parts = make_parts(kept, self._names)
        self._anew = Anew(anew or {}, {name: kept[name] for name in self._parts})
        self._frozen, self._layouts = frozenset(frozen), BucketLayouts(world_size)
        self._gradients, self._compiled = _gradients(kept, self._names), CompiledShapes()
        self._collector = Collector(rank, self.node, self._agreement(peers))
        modules = [name for name in self._parts if isinstance(kept[name], nn.Module)]
        self._digests = PartDigests([name for name in self._parts if not _is_of_adapter(kept[name])], modules)
        self._saved_digests: Mapping[str, str] = {}
        self._restored_digests: Mapping[str, str] = {}
        self._ahead: tuple[int, Collected] | None = None  # collected by `agree`, for `collect` at the same boundary
        self._generators, self._rng_buffers = rng.Generators(OwnGenerators(attached, reached)), rng.Buffers()
        self._rng_read: dict[str, Any] = {}
        self._begun = self._restored = False
        self.in_steps = False  # the script's loop is over Job.steps(), which puts the generators back as it begins
        self.begins_anew = False
        """`restore` has left objects as the script made them: the resumed run is to be another one than it was"""
        self._structure: Structure | None = None
        self.loops: Callable[[], Any] | None = None
        """asked, at each collection, where the loops of Job.epochs() and Job.batches() are; None: there are none"""
        self.saved_loops: Any = None
        """what `loops` had returned where this state was restored from"""
        self._gradient_copies: list[tuple[nn.Parameter, Tensor]] = []
        self.loop_variables: LoopVariables | None = None  # set where somebody looks at the training loop
        self.restored_variables: RestoredVariables | None = None  # what `restore` has read of them
        self._share_out()

    def _agreement(self, peers: Sequence[Page]) -> ReplicaAgreement | None:
        if self.world_size == 1 or not peers:
            return None
        groups: dict[Group, list[Collection[int]]] = {g: [self._names.places(g)] for g in self._names.groups()}
        stepped = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        for tensor in (*(one for part in self.modules() for one in part.tensors()[0].values()), *stepped):
            if is_sharded(tensor):
                from ftlaunch_hooks.tensors.dtensor import holders_of  # noqa: PLC0415 - see is_sharded

                if (holders := holders_of(tensor, self.node)) is not None:
                    groups[holders] = [[self.node.place(rank) for rank in ranks] for ranks in holders]
        return ReplicaAgreement(self.node.place(self.rank), peers, [*self._parts, gradients.NAME], groups)

    def _share_out(self) -> None:
        """Decide, the same on every rank of the node that holds it, who saves which replicated parameter."""
        known = self._names.replicated
        found = {part.key(name): one for part in self.modules() for name, one in part.tensors()[0].items()}
        found |= self._gradients.loose()
        sizes = {key: tensor.nbytes for key, tensor in found.items() if id(tensor) in known}
        places = {key: self._names.places(known[id(found[key])].group) for key in sizes}
        self._names.owners = share_out(sizes, places)

    def collect(self, step: int | None = None) -> Collected:
        """The state now, RNG included. Tensors are not copied: they change when training goes on.

        step: the boundary; what `agree` has collected there is taken once, and at no other.
        Raises StateError, with the path, for something that cannot be saved.
        """
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == step else self._collect()

    def agree(self, step: int, patience_seconds: float = math.inf) -> bool:
        """All ranks at the boundary of `step`: agree on what all of them hold, so that one rank saves it.

        patience_seconds: how long a rank that does not come is waited for. False: this rank is to take no snapshot of
        `step`, see ReplicaAgreement.meet. Raises what `collect` raises.
        """
        if self.world_size == 1:
            return True
        collected = self._collect()
        whole = self._collector.agree(step, patience_seconds)
        if apart := self._collector.take_apart():
            say(_APART.format(names=few(apart)))
        self._ahead = (step, replace(collected, items=self._collector.finish())) if whole else None
        return whole

    def _collect(self) -> Collected:
        names = self._names
        names.keys = {}
        names.stepped = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        self._collector.begin()
        state: dict[str, Json] = {}
        for name, part in self._parts.items():
            state[name] = self._anew.mark(name, {"kind": part.kind, **part.collect(self._collector)})
        state[gradients.NAME] = self._gradients.collect(self._collector)
        if layouts := self._layouts.collect():
            state[bucket_layout.NAME] = layouts
        if compiled := self._compiled.collect():
            state[compiled_shapes.NAME] = compiled
        state[RNG] = encode(self._rng_state(), (RNG,), self._put_rng)
        if self.loops is not None and (loops := self.loops()) is not None:
            state[LOOPS] = encode(pack(loops), (LOOPS,), self._put_rng)
        variables = self.loop_variables or self.restored_variables
        if variables is not None and (tree := dict(variables.collect(self._collector))):
            state[loop_variables.NAME] = tree
        items = self._collector.finish()
        state[memory_layout.NAME] = self._collector.layouts
        collected = Collected(items, state, self._collector.outside, self._collector.watch)
        if self._structure is not None:
            self._structure.check(collected)
        return collected

    def sample(self, collected: Collected) -> None:
        """Add digests of the attached objects, as they are now, to what was collected last: see PartDigests."""
        collected.state[saved_digests.NAME] = self._digest(collected)

    def sample_restored(self) -> None:
        """Sample the attached objects right behind `restore`, for the two methods that follow."""
        self._restored_digests = self._digest_now()

    def find_restored_otherwise(self) -> list[str]:
        """Return the attached objects that `restore` has not brought back as they were when they were saved.

        LOOPS stands for the place in job.epochs() and job.batches(). Where another number of ranks has saved them, or
        ranks with other shards, none is known.
        """
        return find_differing(self._saved_digests, self._restored_digests)

    def find_changed(self) -> list[str]:
        """Return the attached objects that the script has changed since they were restored."""
        changed = find_differing(self._restored_digests, self._digest_now())
        return [name for name in changed if name != LOOPS]  # a loop that the script has entered is no object of its own

    def _digest_now(self) -> dict[str, str]:
        rng_read = self._rng_read
        collected = self._collect()
        self._rng_read = rng_read  # this is no boundary: they are still to be put back
        return self._digest(collected)

    def _digest(self, collected: Collected) -> dict[str, str]:
        digests = self._digests.digest(self._collector.tensors, collected.state)
        if LOOPS in collected.state:
            digests[LOOPS] = self._digests.digest_entry(collected.state[LOOPS])
        return digests

    def hold_structure(self) -> None:
        """From now on `collect` refuses what a script that has just attached could not be given back."""
        optimizers = {name: part.optimizer for name, part in self._parts.items() if isinstance(part, OptimizerPart)}
        self._structure = Structure(self.collect(), optimizers, self._names, self.rank)

    def _rng_state(self) -> dict[str, Any]:
        """Until training begins: the restored state, or nothing, as the script seeds and draws by itself."""
        if not self._begun:
            return self._rng_read
        self._rng_read = {}
        return {**self._generators.state(), _IN_STEPS: self.in_steps}

    def _put_rng(self, path: Path, tensor: Tensor) -> str:
        kept = self._rng_buffers.keep(join(path), tensor)
        return self._collector.put(path, kept, restored=Restored.APART)

    def restore(self, saved: SavedTensors, advance: Advance = ignore) -> None:
        """Put back what was saved: modules in place, then everything else by its load_state_dict().

        Names, shapes and dtypes are checked before anything changes. The random number generators follow
        when `restore_rng` is called. advance: told of bytes that are read.
        Raises StateError when what was saved does not fit what is attached.
        """
        rank = self.reads_as(saved)
        lookup, state = self._lookup(saved, advance), saved.state(rank)
        self._check_objects(state)
        self._check_ranks(saved)
        self.collect()  # names of parameters
        lookup.layout = SavedLayout(state.get(memory_layout.NAME), self._collector.placed())
        self._restored = saved.step > 0  # at step 0 DDP has done in this process what it had done in the first one
        if self._restored and (why := self._layouts.replay(state.get(bucket_layout.NAME))):
            self._tell_of_buckets(why)
        self._compiled.resume(state.get(compiled_shapes.NAME, {}), tell=self.rank == 0)
        anew = self._anew.names(state)
        loads = [part.plan(state[name], lookup) for name, part in self._parts.items() if name not in anew]
        if gradients.NAME in state:
            other_ranks = saved.world_size != self.world_size
            loads.append(self._gradients.plan(state[gradients.NAME], lookup, values_only=other_ranks))
        loads += self._anew.plan(state, saved.step, saved.consumed_samples, tell=self.rank == 0)
        lookup.layout.arrange()
        for load in loads:
            load()
        is_own = saved.world_size == self.world_size and saved.has_state(rank)
        self._saved_digests = state.get(saved_digests.NAME, {}) if is_own else {}
        # A rank that did not exist then has no saved random state: it keeps that of its own seed.
        self._rng_read = decode(state[RNG], lookup.get) if rank < saved.world_size else {}
        if self._rng_read:
            self._generators.check(self._rng_read)
        self.saved_loops = unpack(decode(state[LOOPS], lookup.get)) if LOOPS in state else None
        if self.saved_loops is not None and self.saved_loops["open"]:
            self._gradient_copies = self._gradients.copies()
        if loop_variables.NAME in state and rank < saved.world_size:
            self.restored_variables = RestoredVariables(state[loop_variables.NAME], lookup)

    def restore_again(self, saved: SavedTensors) -> None:
        """Put back once more what `restore` has put back of the attached objects, after the script has changed them."""
        lookup, state = self._lookup(saved, ignore), saved.state(self.reads_as(saved))
        anew = self._anew.names(state)
        loads = [part.plan(state[name], lookup) for name, part in self._parts.items() if name not in anew]
        for load in loads:
            load()

    def put_back_gradients(self) -> None:
        """Put the gradients back that were restored within a pass over job.batches().

        What stands before the pass in the body of an epoch has run again, and clears them, often.
        """
        for parameter, gradient in self._gradient_copies:
            parameter.grad = gradient
        self._gradient_copies = []

    def reads_as(self, saved: SavedTensors) -> int:
        """The rank whose own this rank takes of what was saved. Raises StateError where there was none."""
        if self.stands_for is None or saved.world_size == self.world_size:
            return self.rank
        if not saved.has_state(self.stands_for):
            raise StateError(
                f"cannot restore as rank {self.stands_for}: {saved.world_size} ranks have saved, and it is none of them"
            )
        return self.stands_for

    def _lookup(self, saved: SavedTensors, advance: Advance) -> Lookup:
        ranks = self.world_size if self.stands_for is None else saved.world_size
        return Lookup(saved, self.reads_as(saved), ranks, advance)

    def training_begins(self) -> None:
        """After a restore: tell what it could not reach."""
        if self._restored and self._layouts.made_later():
            self._tell_of_buckets("it was wrapped after attach()")
        self._restored = False

    def _tell_of_buckets(self, why: str) -> None:
        if self.rank == 0:
            say(bucket_layout.NOT_EXACT.format(why=why))

    def restore_weights(self, saved: SavedTensors, advance: Advance = ignore) -> None:
        """Put back what was saved of the modules, in place, and nothing else: a new run begins with these weights.

        advance: told of bytes that are read. Raises StateError when the modules that are attached do not fit; then
        nothing has changed.
        """
        lookup, state = self._lookup(saved, advance), saved.state(self.reads_as(saved))
        if not (modules := self.modules()):
            raise StateError("cannot load weights: no module is attached")
        self._check_ranks(saved)
        for load in [part.plan(_module_tree(part, state, saved), lookup) for part in modules]:
            load()

    def modules(self) -> list[ModulePart]:
        """The attached modules that are saved."""
        return [part for part in self._parts.values() if isinstance(part, ModulePart)]

    def _check_objects(self, state: Mapping[str, Json]) -> None:
        names, anew = set(state) - TAKEN.keys() - self._frozen, self._anew.names(state)
        self.begins_anew = bool(anew)
        if missing := set(self._parts) - names - anew:
            raise StateError(f"cannot restore {few(missing)}: attached now, but not when the state was saved")
        if surplus := names - set(self._parts):
            raise StateError(f"cannot restore: {few(surplus)} saved, but not attached now")
        for name, part in self._parts.items():
            if name not in anew and state[name]["kind"] != part.kind:
                saved = state[name]["kind"]
                raise StateError(f"cannot restore `{name}`: {part.kind} now, {saved} when saved")

    def _check_ranks(self, saved: SavedTensors) -> None:
        """Raises StateError where another number of ranks had different states, and this one stands for none."""
        if saved.world_size == self.world_size or self.stands_for is not None:
            return
        for key in saved.copied():
            if saved.has_other_values(key):
                raise StateError(
                    f"cannot restore `{key}` on {self.world_size} ranks: ranks that were to hold the same of it have"
                    f" saved other values each; start with {saved.world_size} ranks"
                )
        states = [saved.state(rank) for rank in range(saved.world_size)]
        for name, part in self._parts.items():
            trees = [state.get(name, {}) for state in states]
            if isinstance(part, OptimizerPart):
                named = [tensor_keys(tree.get("state")) for tree in trees]
                check_alike(f"optimizer `{name}`", saved, named, self.world_size)
            elif isinstance(part, ModulePart):
                check_alike(f"module `{name}`", saved, [part.parameter_keys()] * len(trees), self.world_size)

    @property
    def awaits_steps(self) -> bool:
        """Whether the generators are to be put back by Job.steps(), as what was restored was saved in its loop.

        What a script draws between attach() and that loop it draws then as in its first run.
        """
        return bool(self._rng_read.get(_IN_STEPS, False))

    def own_generators(self) -> list[Any]:
        """The generators of the script's that are saved though no attached object holds them."""
        return self._generators.own.present()

    def random_numbers(self) -> object:
        """Equal to what it was as long as nobody has drawn a number."""
        return self._generators.mark()

    def read_generators(self) -> dict[str, Any]:
        """Return where all generators are now, as it may be saved; those that the script has made among them."""
        return copy.deepcopy(self._generators.state())

    def put_back_generators(self, state: dict[str, Any]) -> None:
        """Put all generators where `read_generators` has found them; `restore_rng` does not count as called."""
        self._generators.put_back(state)

    def restore_rng(self) -> bool:
        """Training begins: put the random number generators where they were saved, if `restore` has read any.

        It may be called again until the next `collect`. Returns whether there was anything to put back.
        """
        self._begun = True
        if self._rng_read:
            self._generators.put_back(self._rng_read)
        return bool(self._rng_read)

    def settle_rng(self) -> None:
        """The moment at which the random numbers were saved has come, and is over: they go on from there."""
        self._rng_read = {}


def _is_of_adapter(target: object) -> bool:
    """Whether an adapter of ours has attached an object of its own.

    It tells where its framework's loop is, and that loop is not there yet when its state is restored.
    """
    return type(target).__module__.startswith("ftlaunch_hooks.adapters.")


def _module_tree(part: ModulePart, state: Mapping[str, Json], saved: SavedTensors) -> Mapping[str, Json]:
    """The saved tree of a module; made from the keys where only tensors were saved (dcp_writer.py)."""
    if part.name in state:
        if state[part.name]["kind"] != part.kind:
            raise StateError(f"cannot load weights: `{part.name}` was saved, but is no module")
        # the script decides what is frozen and evaluating, and makes what its state_dict() leaves out
        decided = ("frozen", "evaluating", "wrappers_evaluating", "beside")
        return {name: value for name, value in state[part.name].items() if name not in decided}
    start = f"{part.name}."
    saved_keys = [key.replace("@@", "\0") for key in saved.keys()]  # noqa: SIM118 - no mapping
    keys = [key for key in saved_keys if key.startswith(start) and "@" not in key]  # without those of other ranks
    names = [key[len(start) :].replace("\0", "@") for key in keys]
    if not names:
        raise StateError(f"cannot load weights: there are none of `{part.name}`")
    return {"tensors": names, "extra": {}}


def _gradients(objects: Mapping[str, Any], names: Names) -> gradients.Gradients:
    modules = {name: target for name, target in objects.items() if isinstance(target, nn.Module)}
    optimizers = {name: target for name, target in objects.items() if isinstance(target, torch.optim.Optimizer)}
    return gradients.Gradients(modules, optimizers, names)
