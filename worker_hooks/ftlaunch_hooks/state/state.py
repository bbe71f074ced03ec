"""A rank's state: all attached objects, collected as tensors and JSON, and restored from them.

`RankState` belongs to a Job, which calls it in the training thread, at step boundaries and around a resume. Nothing
here copies tensors or writes files: the snapshotter does.
"""

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
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state import compiled_shapes, gradients, loop_variables
from ftlaunch_hooks.state.attached import LOOPS, RESERVED_NAMES, RNG, check_attachable, make_parts
from ftlaunch_hooks.state.collector import Collected, Collector, share_out
from ftlaunch_hooks.state.compiled_shapes import CompiledShapes
from ftlaunch_hooks.state.loop_variables import LoopVariables, RestoredVariables
from ftlaunch_hooks.state.module import ModulePart
from ftlaunch_hooks.state.optimizer import OptimizerPart, tensor_keys
from ftlaunch_hooks.state.packed import pack, unpack
from ftlaunch_hooks.state.part_digests import PartDigests, find_differing
from ftlaunch_hooks.state.parts import Names, list_names
from ftlaunch_hooks.state.random_numbers import rng
from ftlaunch_hooks.state.random_numbers.generators import OwnGenerators, kind_of
from ftlaunch_hooks.state.restarted_objects import RestartedObjects
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

_IN_STEPS = "in_steps"  # in the entry RNG: whether the loop was over Job.steps()
_REPLICAS_DIFFER = (
    "the ranks hold other values of {names}, of which all ranks are to hold the same (DistributedDataParallel,"
    " replicated=, or Replicate() of a DTensor): from here on each rank saves its own, and only as many ranks can"
    " resume from it"
)


@dataclass(frozen=True)
class Choices:
    """What attach() was told about the objects besides their names."""

    frozen: Collection[str]
    """names of objects that are neither saved nor restored"""
    replicated: Said
    """names of objects of which the script says that all ranks, or all ranks of a group, hold the same values"""
    anew: Mapping[str, str]
    """name of an object -> a word that is saved with it; an object that was saved under another word, or under none,
    stays as the script made it (restarted_objects.py)"""
    training: str
    """the word by which a job that resumes tells several trainings of one script apart"""
    stands_for: int | None = None
    """the rank whose state is read if another number of ranks has saved; None: the rank of the same number"""
    keep: bool = True
    """whether variables of the training loop are saved and put back"""
    ignore: Collection[str] = ()
    """names of variables that are neither saved nor mentioned to the user"""


class RankState:
    """The attached objects of one rank, with everything that is saved beside them."""

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
        """Take what attach() was given.

        Args:
            objects: name -> anything with state_dict() and load_state_dict().
            frozen: names of objects that are neither saved nor restored.
            rank: this rank's number in the job.
            world_size: number of ranks in the job.
            peers: the pages of the node's ranks, in which they agree on what is replicated; without pages nothing
                counts as replicated.
            found: generators that the script has made and not attached, from `generators.find`.
            node: the ranks on this rank's node; None: all ranks of the job.
            replicated: names of objects that are equal on all ranks, or on the ranks that a function returns.
            anew: name of an object -> a word that is saved with it. An object that was saved under another word, or
                under none, stays as the script made it.
            stands_for: the rank whose state this rank reads if another number of ranks has saved; None: the rank with
                this rank's number.

        Raises:
            StateError: an object cannot be attached, or a name is not one of an object.
        """
        check_attachable(objects, frozen)
        self.rank = rank
        self.world_size = world_size
        self.node = node or one_node(world_size)
        self.stands_for = stands_for
        self.optimizers = [target for target in objects.values() if isinstance(target, torch.optim.Optimizer)]
        kept = {name: target for name, target in objects.items() if name not in frozen}
        attached = {name: kept.pop(name) for name in list(kept) if kind_of(kept[name]) is not None}
        reached = {path: value for path, value in (found or {}).items() if path.partition(".")[0] not in frozen}
        self._names = Names(
            replicated=replicated_parameters(rank, world_size, objects=objects, said=replicated),
            objects=kept,
            said=replicated,
            node=self.node,
        )
        self._parts = make_parts(kept, self._names)
        self._restarted = RestartedObjects(anew or {}, {name: kept[name] for name in self._parts})
        self._frozen = frozenset(frozen)
        self._layouts = BucketLayouts(world_size)
        self._gradients = _make_gradients(kept, self._names)
        self._compiled = CompiledShapes()
        self._collector = Collector(rank, self.node, self._agreement(peers))
        modules = [name for name in self._parts if isinstance(kept[name], nn.Module)]
        self._digests = PartDigests([name for name in self._parts if not _is_of_adapter(kept[name])], modules)
        self._saved_digests: Mapping[str, str] = {}
        self._restored_digests: Mapping[str, str] = {}
        self._ahead: tuple[int, Collected] | None = None  # collected by `agree`, for `collect` at the same boundary
        self._generators = rng.Generators(OwnGenerators(attached, reached))
        self._rng_buffers = rng.Buffers()
        self._rng_read: dict[str, Any] = {}  # restored states that are still to be put back
        self._all_ranks_read = False  # whether every rank of the job has restored such states
        self._training_began = False  # `restore_rng` was called: the script's own seeding and drawing is over
        self._warns_of_buckets = False  # a step above 0 was restored, and training has not begun since
        self.in_steps = False  # the script's loop is over Job.steps(), which puts the generators back as it begins
        self.has_restarted_objects = False
        """whether `restore` has left objects as the script made them, so that the resumed run is meant to differ"""
        self._structure: Structure | None = None
        self.loops: Callable[[], Any] | None = None
        """returns, at each collection, where the loops of Job.epochs() and Job.batches() are; None: there are none"""
        self.saved_loops: Any = None
        """the result of `loops` in the state that was restored"""
        self._gradient_copies: list[tuple[nn.Parameter, Tensor]] = []
        self.loop_variables: LoopVariables | None = None  # set where the training loop is observed
        self.restored_variables: RestoredVariables | None = None  # the loop's variables that `restore` has read
        self._assign_owners()

    def _agreement(self, peers: Sequence[Page]) -> ReplicaAgreement | None:
        """Return what lets this rank agree with others on what is replicated; None if there are no others here."""
        if self.world_size == 1 or not peers:
            return None
        groups: dict[Group, list[Collection[int]]] = {}
        for group in self._names.groups():
            groups[group] = [self._names.places(group)]
        tensors = [tensor for part in self.modules() for tensor in part.tensors()[0].values()]
        for tensor in [*tensors, *self._stepped_parameters()]:
            if is_sharded(tensor):
                from ftlaunch_hooks.tensors.dtensor import holders_of  # noqa: PLC0415 - see is_sharded

                if (holders := holders_of(tensor, self.node)) is not None:
                    groups[holders] = [[self.node.place(rank) for rank in ranks] for ranks in holders]
        return ReplicaAgreement(self.node.place(self.rank), peers, [*self._parts, gradients.NAME], groups)

    def _stepped_parameters(self) -> list[Tensor]:
        """Return the parameters that the attached optimizers step."""
        return [
            parameter
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def _assign_owners(self) -> None:
        """Decide which rank saves which replicated parameter. All ranks of the node that hold it decide the same."""
        replicated = self._names.replicated
        tensors = {part.key(name): tensor for part in self.modules() for name, tensor in part.tensors()[0].items()}
        tensors |= self._gradients.loose()
        sizes = {key: tensor.nbytes for key, tensor in tensors.items() if id(tensor) in replicated}
        places = {key: self._names.places(replicated[id(tensors[key])].group) for key in sizes}
        self._names.owners = share_out(sizes, places)

    def collect(self, step: int | None = None) -> Collected:
        """Return the state now, random numbers included. Tensors are not copied: they change when training goes on.

        Args:
            step: the boundary. What `agree` has collected at the same boundary is returned once instead.

        Raises:
            StateError: something cannot be saved; the message has its path.
        """
        ahead = self._ahead
        self._ahead = None
        return ahead[1] if ahead is not None and ahead[0] == step else self._collect()

    def agree(self, step: int, patience_seconds: float = math.inf) -> bool:
        """Agree with all ranks at the boundary of `step` on which tensors all of them hold; one rank saves each.

        Args:
            step: the boundary, at which every rank calls this.
            patience_seconds: how long to wait for a rank that does not come.

        Returns:
            Whether this rank is to take a snapshot of `step`; False as explained at `ReplicaAgreement.meet`.

        Raises:
            StateError: something cannot be saved.
        """
        if self.world_size == 1:
            return True
        collected = self._collect()
        whole = self._collector.agree(step, patience_seconds)
        if apart := self._collector.pop_differing():
            say(_REPLICAS_DIFFER.format(names=list_names(apart)))
        self._ahead = (step, replace(collected, items=self._collector.finish())) if whole else None
        return whole

    def _collect(self) -> Collected:
        """Collect all parts now, with what is queued on devices done.

        This concerns tensors in this process's memory as well: offloading optimizers queue copies into pinned memory,
        which a state_dict() may read, and a state_dict() may queue copies itself, whose values are compared next.

        Once training has begun, this forgets restored states of generators (`_rng_read`): the generators have moved on.

        Raises:
            StateError: something cannot be saved.
        """
        device_port.wait_for_devices()
        names = self._names
        names.keys = {}
        names.stepped = {id(parameter) for parameter in self._stepped_parameters()}
        self._collector.begin()
        state: dict[str, Json] = {}
        for name, part in self._parts.items():
            state[name] = self._restarted.mark(name, {"kind": part.kind, **part.collect(self._collector)})
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
        device_port.wait_for_devices()
        items = self._collector.finish()
        state[memory_layout.NAME] = self._collector.layouts
        collected = Collected(items, state, self._collector.outside, self._collector.watch)
        if self._structure is not None:
            self._structure.check(collected)
        return collected

    def sample(self, collected: Collected) -> None:
        """Add digests of the attached objects, as they are now, to `collected`, the result of the last collection."""
        collected.state[saved_digests.NAME] = self._digest(collected)

    def sample_restored(self) -> None:
        """Digest the attached objects directly after `restore`, for `find_restored_otherwise` and `find_changed`."""
        self._restored_digests = self._digest_now()

    def find_restored_otherwise(self) -> list[str]:
        """Return the names of attached objects whose digest after `restore` differs from the digest that was saved.

        LOOPS stands for the place in job.epochs() and job.batches(). Objects that were saved by another number of
        ranks, or by ranks with other shards, cannot be compared and are left out.
        """
        return find_differing(self._saved_digests, self._restored_digests)

    def find_changed(self) -> list[str]:
        """Return the names of attached objects that the script has changed since they were restored."""
        changed = find_differing(self._restored_digests, self._digest_now())
        return [name for name in changed if name != LOOPS]  # the script has merely entered its loop

    def _digest_now(self) -> dict[str, str]:
        """Return digests of the attached objects as they are now. Restored states of generators are kept."""
        rng_read = self._rng_read
        collected = self._collect()
        self._rng_read = rng_read  # `_collect` drops them as at a boundary, but they are still to be put back
        return self._digest(collected)

    def _digest(self, collected: Collected) -> dict[str, str]:
        digests = self._digests.digest(self._collector.tensors, collected.state)
        if LOOPS in collected.state:
            digests[LOOPS] = self._digests.digest_entry(collected.state[LOOPS])
        return digests

    def hold_structure(self) -> None:
        """Make `collect` refuse, from now on, what could not be restored into a script that has just attached."""
        optimizers = {name: part.optimizer for name, part in self._parts.items() if isinstance(part, OptimizerPart)}
        self._structure = Structure(self.collect(), optimizers=optimizers, names=self._names, rank=self.rank)

    def _rng_state(self) -> dict[str, Any]:
        """Return the generators' states; before training begins, the restored states that are still to be put back.

        Until then the script seeds and draws by itself.
        """
        if not self._training_began:
            return self._rng_read
        self._rng_read = {}
        return {**self._generators.state(), _IN_STEPS: self.in_steps}

    def _put_rng(self, path: Path, tensor: Tensor) -> str:
        kept = self._rng_buffers.keep(join(path), tensor)
        return self._collector.put(path, kept, restored=Restored.APART)

    def restore(self, saved: SavedTensors, advance: Advance = ignore) -> None:
        """Put back what was saved: modules in place, then everything else by its load_state_dict().

        Names, shapes and dtypes are checked before anything changes. The random number generators follow when
        `restore_rng` is called.

        Args:
            saved: a checkpoint or a snapshot.
            advance: told the number of bytes that are read.

        Raises:
            StateError: what was saved does not fit what is attached.
        """
        rank = self.reads_as(saved)
        lookup = self._lookup(saved, advance)
        state = saved.state(rank)
        self._check_objects(state)
        self._check_ranks(saved)
        self.collect()  # for its side effects: parameters get their keys, and the collector learns where tensors lie
        lookup.layout = SavedLayout(state.get(memory_layout.NAME), self._collector.placed())
        self._warns_of_buckets = saved.step > 0  # at step 0 DDP has made the same buckets as in the first process
        if self._warns_of_buckets and (why := self._layouts.replay(state.get(bucket_layout.NAME))):
            self._warn_of_buckets(why)
        self._compiled.resume(state.get(compiled_shapes.NAME, {}), should_log=self.rank == 0)
        restarted = self._restarted.names(state)
        loads = [part.plan(state[name], lookup) for name, part in self._parts.items() if name not in restarted]
        if gradients.NAME in state:
            other_ranks = saved.world_size != self.world_size
            loads.append(self._gradients.plan(state[gradients.NAME], lookup, values_only=other_ranks))
        loads += self._restarted.plan(state, saved.step, saved.consumed_samples, should_log=self.rank == 0)
        lookup.layout.arrange()
        for load in loads:
            load()
        is_own = saved.world_size == self.world_size and saved.has_state(rank)
        self._saved_digests = state.get(saved_digests.NAME, {}) if is_own else {}
        # A rank that did not exist then has no saved random state, and keeps the one of its own seed.
        self._rng_read = decode(state[RNG], lookup.get) if rank < saved.world_size else {}
        self._all_ranks_read = self.stands_for is not None or self.world_size <= saved.world_size
        if self._rng_read:
            self._generators.check(self._rng_read)
        self.saved_loops = unpack(decode(state[LOOPS], lookup.get)) if LOOPS in state else None
        if self.saved_loops is not None and self.saved_loops["open"]:
            self._gradient_copies = self._gradients.copies()
        if loop_variables.NAME in state and rank < saved.world_size:
            self.restored_variables = RestoredVariables(state[loop_variables.NAME], lookup)

    def restore_once_more(self, saved: SavedTensors) -> None:
        """Put the attached objects back once more, after the script has changed what `restore` has put back.

        Gradients, random numbers, loops and objects that begin anew are not put back again.

        Args:
            saved: the checkpoint or snapshot that was given to `restore`.

        Raises:
            StateError: what was saved does not fit what is attached now.
        """
        lookup = self._lookup(saved, ignore)
        state = saved.state(self.reads_as(saved))
        # Not collected anew: that would drop the random numbers which are still to be put back.
        lookup.layout = SavedLayout(state.get(memory_layout.NAME), self._collector.placed())
        restarted = self._restarted.names(state)
        loads = [part.plan(state[name], lookup) for name, part in self._parts.items() if name not in restarted]
        lookup.layout.arrange()
        for load in loads:
            load()

    def put_back_gradients(self) -> None:
        """Put back the gradients that were restored within a pass over job.batches().

        The code before the pass in the body of an epoch has run again, and often clears them.
        """
        for parameter, gradient in self._gradient_copies:
            parameter.grad = gradient
        self._gradient_copies = []

    def reads_as(self, saved: SavedTensors) -> int:
        """Return the rank whose own tensors and state this rank reads.

        Raises:
            StateError: this rank is to stand for a rank that has not saved.
        """
        if self.stands_for is None or saved.world_size == self.world_size:
            return self.rank
        if not saved.has_state(self.stands_for):
            raise StateError(
                f"cannot restore as rank {self.stands_for}: {saved.world_size} ranks have saved, and it is none of them"
            )
        return self.stands_for

    def _lookup(self, saved: SavedTensors, advance: Advance) -> Lookup:
        ranks = self.world_size if self.stands_for is None else saved.world_size
        return Lookup(saved, self.reads_as(saved), ranks, advance=advance)

    def training_begins(self) -> None:
        """Warn, once training begins after a restore, of what the restore could not reach."""
        if self._warns_of_buckets and self._layouts.made_later():
            self._warn_of_buckets("it was wrapped after attach()")
        self._warns_of_buckets = False

    def _warn_of_buckets(self, why: str) -> None:
        if self.rank == 0:
            say(bucket_layout.NOT_EXACT.format(why=why))

    def restore_weights(self, saved: SavedTensors, advance: Advance = ignore) -> None:
        """Put back, in place, what was saved of the modules, and nothing else: a new run begins with these weights.

        Args:
            saved: a checkpoint.
            advance: told the number of bytes that are read.

        Raises:
            StateError: the attached modules do not fit; then nothing has changed.
        """
        lookup = self._lookup(saved, advance)
        state = saved.state(self.reads_as(saved))
        if not (modules := self.modules()):
            raise StateError("cannot load weights: no module is attached")
        self._check_ranks(saved)
        for load in [part.plan(_module_tree(part, state, saved), lookup) for part in modules]:
            load()

    def modules(self) -> list[ModulePart]:
        """Return the parts of the attached modules that are saved."""
        return [part for part in self._parts.values() if isinstance(part, ModulePart)]

    def _check_objects(self, state: Mapping[str, Json]) -> None:
        names = set(state) - RESERVED_NAMES.keys() - self._frozen
        restarted = self._restarted.names(state)
        self.has_restarted_objects = bool(restarted)
        if missing := set(self._parts) - names - restarted:
            raise StateError(f"cannot restore {list_names(missing)}: attached now, but not when the state was saved")
        if surplus := names - set(self._parts):
            raise StateError(f"cannot restore: {list_names(surplus)} saved, but not attached now")
        for name, part in self._parts.items():
            if name not in restarted and state[name]["kind"] != part.kind:
                saved = state[name]["kind"]
                raise StateError(f"cannot restore `{name}`: {part.kind} now, {saved} when saved")

    def _check_ranks(self, saved: SavedTensors) -> None:
        """Raise StateError if another number of ranks had different states, and this rank stands for none of them."""
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
                check_alike(f"optimizer `{name}`", saved, named, ranks=self.world_size)
            elif isinstance(part, ModulePart):
                keys = [part.parameter_keys()] * len(trees)
                check_alike(f"module `{name}`", saved, keys, ranks=self.world_size)

    @property
    def awaits_steps(self) -> bool:
        """Whether Job.steps() is to put the generators back, because the restored state was saved in its loop.

        What a script draws between attach() and that loop, it then draws as in its first run.
        """
        return bool(self._rng_read.get(_IN_STEPS, False))

    def own_generators(self) -> list[Any]:
        """Return the script's generators that are saved although no attached object holds them."""
        return self._generators.own.present()

    def random_numbers(self) -> object:
        """Return a value that stays equal for as long as nobody draws a random number."""
        return self._generators.mark()

    def read_generators(self) -> dict[str, Any]:
        """Return a copy of the states of all generators, including the script's own, in a form that may be saved."""
        return copy.deepcopy(self._generators.state())

    def put_back_generators(self, state: dict[str, Any]) -> None:
        """Put all generators where `read_generators` found them. This does not count as a call of `restore_rng`."""
        self._generators.put_back(state)

    def restore_rng(self) -> bool:
        """Put the random number generators where they were saved, when training begins.

        May be called again until the next `collect`.

        Returns:
            Whether there was anything to put back.
        """
        self._training_began = True
        if self._rng_read:
            if self._all_ranks_read:  # what is prepared is prepared on all ranks, or on none
                self._generators.prepare(self._rng_read)
            self._generators.put_back(self._rng_read)
        return bool(self._rng_read)

    def settle_rng(self) -> None:
        """Stop putting generators back: training has passed the moment at which they were saved."""
        self._rng_read = {}


def _is_of_adapter(target: object) -> bool:
    """Whether an adapter of ours has attached an object of its own.

    Such an object says where its framework's loop is, and the loop does not exist yet when the object is restored.
    """
    return type(target).__module__.startswith("ftlaunch_hooks.adapters.")


def _module_tree(part: ModulePart, state: Mapping[str, Json], saved: SavedTensors) -> Mapping[str, Json]:
    """Return the saved tree of a module; made from the keys where only tensors were saved (dcp_writer.py)."""
    if part.name in state:
        if state[part.name]["kind"] != part.kind:
            raise StateError(f"cannot load weights: `{part.name}` was saved, but is no module")
        # A new run decides itself what is frozen or evaluating, and makes the buffers that state_dict() leaves out.
        left_to_script = ("frozen", "evaluating", "wrappers_evaluating", "beside")
        return {name: value for name, value in state[part.name].items() if name not in left_to_script}
    names = _plain_names(f"{part.name}.", saved)
    if not names:
        raise StateError(f"cannot load weights: there are none of `{part.name}`")
    return {"tensors": names, "extra": {}}


def _plain_names(prefix: str, saved: SavedTensors) -> list[str]:
    """Return what follows `prefix` in the keys that begin with it, without keys that name ranks.

    In a key `@@` stands for an `@` of the name, and a single `@` precedes the ranks that have saved the tensor
    (shared_keys.py). A null character, which no name contains, takes the place of `@@` while `@` is looked for.
    """
    keys = [key.replace("@@", "\0") for key in saved.keys()]  # noqa: SIM118 - no mapping
    return [key[len(prefix) :].replace("\0", "@") for key in keys if key.startswith(prefix) and "@" not in key]


def _make_gradients(objects: Mapping[str, Any], names: Names) -> gradients.Gradients:
    """Create the part that saves the gradients of the attached modules and optimizers."""
    modules = {name: target for name, target in objects.items() if isinstance(target, nn.Module)}
    optimizers = {name: target for name, target in objects.items() if isinstance(target, torch.optim.Optimizer)}
    return gradients.Gradients(modules, optimizers, names)
