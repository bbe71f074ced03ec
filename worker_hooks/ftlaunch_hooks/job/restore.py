"""Restores a rank's state from memory or storage at the step where the job resumes.

attach(), peek() and the trainings of a process call these functions, in the thread that trains. Every rank restores its
own part. Rank 0 writes the sentences that concern the whole job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import initial, layout, skipped_samples, tensor_file
from ftlaunch_contract.checkpoint.seeds import Seeds
from ftlaunch_contract.progress import SlowWork
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.foreign_weights import load_weights
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.parts import OtherPart
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors
from ftlaunch_hooks.tensors.dtypes import local_of
from ftlaunch_hooks.tensors.json_codec import decode

_RESHARDED = (
    "{before} saved the checkpoint of step {step}, and now there are {now}: state and data position are exact, but"
    " batches are shared out otherwise, and {random}: from here on the numbers are not those of a run of {before}"
)
_RANDOM_OWN = "a rank that the checkpoint does not know has random numbers of its own"
_RANDOM_OF_OTHER = "each rank has the random numbers of the rank for which it stands"

_WORKERS = (
    "torchdata saves no random numbers of the workers of `{name}`: where its data set draws any, those after a resume"
    " in the middle of an epoch are others, and the run is not exact; draw them from the sample's number, or use a"
    " ft.ResumableBatchSampler, whose workers are seeded for each sample"
)
READ_EARLY = (
    "a job that resumes cannot bring back the iterator of `{name}` that the script has made before attach(), and will"
    " refuse to go on; make the iterator after attach()"
)
_LOADER_AT_END = (
    "the loader `{name}` had handed out the last batch of its pass: its next pass has no batch, so that what follows"
    " the pass in the script runs; a loop over epochs that begins at a number made of job.step ends an epoch too early,"
    " and then the run is not exact; write `for epoch in job.epochs(number):`, and in it"
    " `for batch in job.batches({name}):`"
)


_OTHER_HASHES = (
    "PYTHONHASHSEED was {saved} when step {step} was saved, and now it is {now}: sets have another order, and a run"
    " that depends on one (a vocabulary made from a set of words) is not exact; start it with PYTHONHASHSEED={saved}"
)
_OTHER_SEED = (
    "step {step} was saved by a job of another seed: what the script draws before attach() without a seed of its own"
    " (an unseeded split, say) differs from what it drew then, and a run that depends on it is not exact; give the"
    " checkpoint together with the seed.json that lies beside it"
)


_ANY_ORDER = (
    "{what}: state and data position are exact, but kernels of a GPU may compute in another order each time, so that"
    " the numbers from here on need not be those of a run without a break, bit for bit"
)


class AttachError(RuntimeError):
    """Raised if attach(), or a later call by the script, cannot do what the script asks."""


def restore(
    state: RankState,
    positions: Positions,
    kind: Resume,
    step: int,
    coordinator: Coordinator,
    opened: SavedTensors | None = None,
) -> SavedTensors | None:
    """Load `state` from memory or storage, and tell the user of everything that keeps the resume from being exact.

    Args:
        state: the rank's state, which is overwritten.
        positions: the data positions among the attached objects.
        kind: where the state comes from.
        step: the step at which the job resumes.
        coordinator: this rank's coordinator.
        opened: the result of `open_step` for these arguments, if it was called before.

    Returns:
        The saved state, or None if training begins or only weights were loaded.

    Raises:
        AttachError: nothing that was saved may be used.
        StateError: the saved state does not fit `state` or `positions`.
        Damaged: the saved state is damaged, or a file of a checkpoint cannot be read.
        OSError: a snapshot in memory cannot be read.
        ValueError: a rank of this node has no snapshot of `step` in memory.
    """
    check_usable(kind, coordinator)
    try:
        restored = _load(state, kind=kind, step=step, coordinator=coordinator, opened=opened)
        if restored is not None:
            positions.check_ranks(restored.world_size, coordinator.world_size)
            if step > 0:
                positions.check_not_read()
                _report_ended_passes(state, positions, coordinator)
            if coordinator.rank == 0:
                for difference in differing_seeds(restored.seeds, bootstrap.own_seeds(), step):
                    say(difference)
            if coordinator.rank == 0 and step > 0:
                for name in positions.with_workers():
                    say(_WORKERS.format(name=name))
                if order := device_port.find_undetermined_order():
                    say(_ANY_ORDER.format(what=order))
            if coordinator.rank == 0 and restored.world_size != coordinator.world_size:
                random = _RANDOM_OWN if state.stands_for is None else _RANDOM_OF_OTHER
                before = _ranks(restored.world_size)
                say(_RESHARDED.format(step=step, before=before, now=coordinator.world_size, random=random))
    except StateError as error:
        if kind == Resume.WEIGHTS:
            raise
        if kind.in_memory and not coordinator.node.whole_job:
            raise StateError(f"{error} (step {step}, from the memory of this node)") from None
        raise StateError(f"{error} (saved at step {step}); give --fresh to start over") from None
    return restored


def differing_seeds(saved: Seeds, now: Seeds, step: int) -> list[str]:
    """Return sentences about the seeds in which `step` and this process differ. Unknown seeds are not compared."""
    sentences = []
    if saved.hash_is_fixed and saved.hash != now.hash:
        sentences.append(_OTHER_HASHES.format(saved=saved.hash, step=step, now=now.hash or "not set"))
    if None not in (saved.job, now.job) and saved.job != now.job:
        sentences.append(_OTHER_SEED.format(step=step))
    return sentences


def _report_ended_passes(state: RankState, positions: Positions, coordinator: Coordinator) -> None:
    """Name the loaders whose pass was complete at the step. Such a loader hands out no batch in its next pass.

    Nothing is said if the saved state has a place in loops of Job.epochs() and Job.batches(), which bring their loaders
    back themselves. Only rank 0 writes.
    """
    if coordinator.rank == 0 and state.saved_loops is None:
        for name in positions.at_end():
            say(_LOADER_AT_END.format(name=name))


def check_usable(kind: Resume, coordinator: Coordinator) -> None:
    """Raise AttachError if `kind` says that the job has checkpoints and none of them may be used."""
    if kind == Resume.REFUSED:
        raise AttachError(
            f"cannot resume: no checkpoint in {coordinator.checkpoint_dir} is usable (see its quarantine/); "
            f"{protocol.ENV_FRESH}=1 starts over"
        )


def saved_object(
    name: str, saved: SavedTensors, coordinator: Coordinator, rank: int | None = None, *, values: bool = True
) -> Any:
    """Return the state_dict() of an object, as a rank has saved it.

    Args:
        name: name of the object.
        saved: the saved state.
        coordinator: this rank's coordinator.
        rank: the rank that has saved the object; None for the rank for which this rank reads.
        values: whether to read the values of tensors. Otherwise the tensors are on the meta device.

    Raises:
        StateError: there is no such object or rank, the object is restored only in place, or a part of a tensor is on
            another node.
    """
    if rank is not None and not saved.has_state(rank):
        by = f"{_ranks(saved.world_size)}{', some of them on other nodes' if saved.partial else ''}"
        raise StateError(f"cannot peek: of step {saved.step} nothing of rank {rank} is here; it was saved by {by}")
    if rank is None:
        own = coordinator.rank
        ranks = coordinator.world_size
    else:
        own = rank
        ranks = saved.world_size
    state = saved.state(own)
    tree = state.get(name)
    if tree is None:
        known = ", ".join(f"`{other}`" for other, part in state.items() if _can_be_peeked(part))
        raise StateError(
            f"cannot peek: step {saved.step} was saved without an object `{name}`; it has {known or 'none'}"
        )
    if not _can_be_peeked(tree):
        raise StateError(
            f"cannot peek: `{name}` is a module, an optimizer or a generator, whose state attach() restores into the"
            " object itself; ft.resuming() tells whether this start resumes, and peek() the step and the state of other"
            " objects"
        )
    lookup = Lookup(saved, own, ranks)

    def without_values(key: str, device: str) -> Tensor:
        dtype, shape = lookup.info(key)
        return torch.empty(shape, dtype=dtype, device="meta")

    return decode(tree["state"], lookup.get if values else without_values)


def _can_be_peeked(tree: Mapping[str, Any]) -> bool:
    return "state" in tree and tree["kind"] == OtherPart.kind


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def skip_bad_data(positions: Positions, directory: Path) -> None:
    """Skip the samples that the job has marked as bad. Raises AttachError if their list cannot be read."""
    try:
        spans = skipped_samples.read(directory)
    except (OSError, ValueError) as error:
        raise AttachError(f"cannot read {directory / skipped_samples.NAME}: {error}") from error
    positions.skip(spans)


def _load(
    state: RankState, *, kind: Resume, step: int, coordinator: Coordinator, opened: SavedTensors | None
) -> SavedTensors | None:
    """Load the state or the weights of a step. Return the saved state, or None as `restore` does."""
    if kind == Resume.WEIGHTS and (other := initial.foreign_format(coordinator.load_path, step)) is not None:
        path = initial.foreign_at(coordinator.load_path, step)[1]
        load_weights(path, other, state.modules(), should_log=coordinator.rank == 0)
        return None
    reader = opened or open_step(kind, step, coordinator)
    if reader is None:
        return None
    if kind == Resume.WEIGHTS:
        slow = SlowWork("loading", _held_bytes(state)[0], say)
        state.restore_weights(reader, slow.advance)
        slow.finish()
        return None
    slow = SlowWork("restoring", _expected_bytes(state, reader), say)
    state.restore(reader, slow.advance)
    slow.finish()
    return reader


def _held_bytes(state: RankState) -> tuple[int, int]:
    """Return the bytes of the attached modules' tensors: of this rank's shards, and of the whole tensors."""
    tensors = [tensor for part in state.modules() for tensor in part.tensors()[0].values()]
    return sum(local_of(tensor).nbytes for tensor in tensors), sum(tensor.nbytes for tensor in tensors)


def _expected_bytes(state: RankState, reader: SavedTensors) -> int:
    """Estimate the bytes that this rank will read, from its share of the modules' tensors."""
    own_bytes, whole_bytes = _held_bytes(state)
    share = own_bytes / whole_bytes if whole_bytes else 1.0
    return round(reader.bytes_for(state.reads_as(reader)) * share)


def open_step(kind: Resume, step: int, coordinator: Coordinator) -> SavedTensors | None:
    """Open the saved state of a step.

    Args:
        kind: where the state is.
        step: the step at which the job resumes.
        coordinator: this rank's coordinator.

    Returns:
        None if training begins without a saved state.

    Raises:
        Damaged: the saved state is damaged, or a file of a checkpoint cannot be read.
        OSError: a snapshot in memory cannot be read.
        ValueError: a rank of this node has no snapshot of `step` in memory.
    """
    if kind.in_memory:
        pages = zip(coordinator.node.ranks, coordinator.peers, strict=True)
        slots = {rank: page.slot_steps().index(step) for rank, page in pages}
        return MemoryReader(
            coordinator.memory_dir, step=step, world_size=coordinator.world_size, slots=slots, rank=coordinator.rank
        )
    if kind == Resume.STORAGE:
        directory = layout.iteration_dir(coordinator.checkpoint_dir, step)
        return _open(directory, coordinator.rank, coordinator.node.ranks)
    if kind in (Resume.LOADED, Resume.WEIGHTS):
        return _open(initial.checkpoint_at(coordinator.load_path, step))
    return None


def _open(directory: Path, rank: int | None = None, node: Collection[int] = ()) -> CheckpointReader:
    try:
        return CheckpointReader(directory, rank, node)
    except (tensor_file.Damaged, OSError) as problem:
        cause = problem.strerror if isinstance(problem, OSError) else problem
        raise tensor_file.Damaged(f"cannot restore from {directory}, which all ranks agreed on: {cause}") from problem
