"""Attach a training of Megatron, and keep the state of its loop.

calls.py makes one MegatronTraining, and calls it on the main thread of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.easyckpt import merging
from ftlaunch_hooks.adapters.easyckpt.megatron import inside, rerun
from ftlaunch_hooks.adapters.easyckpt.megatron.shards import Shards
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.process.say import say

NAME = "megatron"
"""name under which the state of the loop is attached"""
_VALID = "consumed_valid_samples"
_NOT_EVALUATED = (
    "the evaluation of iteration {iteration} comes behind the save_checkpoint_if_needed() at which the job goes on, and"
    " is not made again: later ones have other batches than in an undisturbed run; where the evaluation draws random"
    " numbers, the training is not exact either; call save_checkpoint_if_needed() behind the evaluation"
)
_CONCAT = (
    "cannot resume: the shards of the distributed optimizer were saved by {then} ranks, and this job has {here}; give"
    " load_checkpoint(..., concat=True), which merges them, or start with {then} ranks"
)
_NOT_MERGED = "cannot load with concat=True on {here} ranks what {then} have saved: {why}; start with {then} ranks"
_MERGED = "the shards of the distributed optimizer, which {then} ranks had saved, are merged and cut anew for {here}"
_STALE = (
    "cannot save: save_checkpoint_if_needed() was called with {what}; call it once an iteration, behind `iteration +="
    " 1` and behind the line that adds to args.consumed_train_samples"
)


class MegatronTraining:
    """The state of Megatron's loop, as an object to attach, and the other objects that are attached."""

    job: ft.Job
    """set after attach()"""

    def __init__(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Check what is to be attached.

        Args:
            model: Megatron's model, a module or a list of modules.
            optimizer: Megatron's optimizer.
            scheduler: Megatron's scheduler, or None.

        Raises:
            AttachError: something cannot be kept safe.
        """
        self.model = chunks_of(model)
        self._layers = inside.layers_of(self.model)
        self.keeps_attributes_of = [*self._layers, *inside.stacks_of(self.model)]
        self.keeps_variables = inside.variables()
        self._optimizer = optimizer
        self._scheduler = scheduler
        inside.check_model(self.model)
        inside.check_arguments(inside.arguments())
        self._optimizers = inside.optimizers_of(optimizer)
        self._steps = _numbered("optimizer", [self._attached_for(inner) for inner in self._optimizers])
        self._rerun = rerun.machine(inside.KNOWN)
        self.iteration = 0
        """number of completed iterations"""
        self.operations = 0
        """number of floating point operations that Megatron-LM has counted"""
        self._counts: dict[str, Any] = inside.counts()
        self._evaluated = False  # whether an evaluation was made between the last two boundaries
        self._random: Mapping[str, Any] = {}  # states that were restored, until an iteration is complete

    def _attached_for(self, optimizer: Any) -> Any:
        """Return the object that is attached for one of Megatron's optimizers."""
        return Shards(optimizer, self.model) if inside.is_distributed(optimizer) else optimizer.optimizer

    def objects(self) -> dict[str, Any]:
        """Return what is attached, by name."""
        scalers = [getattr(optimizer, "grad_scaler", None) for optimizer in self._optimizers]
        return {
            **_numbered("model", self.model),
            **self._steps,
            **_numbered("scheduler", [] if self._scheduler is None else [self._scheduler]),
            **_numbered("scaler", [scaler for scaler in scalers if scaler is not None]),
            NAME: self,
        }

    def replicated(self) -> dict[str, Callable[[Any], list[int]]]:
        """Return, by name of an object, a function that returns the ranks which keep a given parameter equal.

        One of these ranks saves the parameter for all.
        """
        if not inside.is_reduced(self.model):
            return {}
        shards = self._shards()
        steps = zip(self._steps, self._optimizers, strict=True)
        masters = {name: inside.masters_of(optimizer) for name, optimizer in steps if name not in shards}
        models = _numbered("model", self.model)
        return {name: _ranks_of(masters.get(name, {})) for name in (*models, *masters)}

    def _shards(self) -> dict[str, Shards]:
        """Return the objects that are attached for distributed optimizers, by name."""
        return {name: attached for name, attached in self._steps.items() if isinstance(attached, Shards)}

    # --- what is saved --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loop at a boundary."""
        return {
            "iteration": self.iteration,
            "operations": self.operations,
            "layout": inside.layout(),
            "counts": self._counts,
            "evaluated": self._evaluated,
            "micro_batches": inside.micro_batches(self._layers),
            "random": self._random or inside.random_states(),
            "rerun": rerun.state(self._rerun),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the state of the loop, except for random numbers, which `begin_loop` restores."""
        self.iteration = saved["iteration"]
        self.operations = saved["operations"]
        self._evaluated = saved["evaluated"]
        self._counts = saved["counts"]
        self._random = saved["random"]
        inside.put_back_micro_batches(self._layers, saved["micro_batches"])
        inside.put_back_counts(self._counts)
        rerun.put_back(self._rerun, saved["rerun"])

    def check_layout(self, saved: Mapping[str, Any]) -> None:
        """Raise AttachError if the model was distributed over ranks differently.

        Another number of ranks alone is not refused here; attach() refuses it where each rank saved a state of its own.
        """
        then = saved["layout"]
        here = inside.layout()
        same_ranks = then["ranks"] == here["ranks"]
        kinds = [name for name in then if name != "ranks" and (same_ranks or not name.endswith("_rank"))]
        before = {name: then[name] for name in kinds}
        now = {name: here[name] for name in kinds}
        if before != now:
            refuse(
                f"cannot resume: the groups of ranks have the sizes and places {now} now, and had {before}; start with"
                " the sizes and the order that they had, or with --fresh"
            )

    def merge_shards(self, saved: Mapping[str, Any], *, concat: bool) -> int | None:
        """Merge the shards of a distributed optimizer, if another number of ranks saved them.

        Args:
            saved: the state of the loop.
            concat: whether the script allows this.

        Returns:
            The rank that saved and for which this rank stands; None if nothing has to be merged.

        Raises:
            AttachError: the script does not allow the merge, or the shards cannot be merged.
        """
        then = saved["layout"]["ranks"]
        here = inside.layout()["ranks"]
        if then == here or not self._shards():
            return None
        if not concat:
            refuse(_CONCAT.format(then=then, here=here))
        try:
            layouts = [_saved(NAME, saver)["layout"] for saver in range(then)]
            rank = merging.stands_for(inside.layout(), layouts)
            for name, shards in self._shards().items():
                shards.merge(_saved(name, rank), partial(_saved, name))
        except merging.MergeError as why:
            refuse(_NOT_MERGED.format(then=then, here=here, why=why))
        self.say_on_first(_MERGED.format(then=then, here=here))
        return rank

    # --- the loop -------------------------------------------------------------------------------------------

    def begin_loop(self) -> None:
        """Put the random numbers of the boundary back, whatever was drawn since: the first iteration comes next."""
        self.job.restore_rng()
        inside.put_back_random_states(self._random)
        every = inside.evaluates_at(self.iteration) if self.job.resumed else 0
        if every and (every == 1 or not self._evaluated):
            self.say_on_first(_NOT_EVALUATED.format(iteration=self.iteration))

    def complete(self, iteration: int, *, operations: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Cross the boundary after `iteration` iterations.

        Args:
            iteration: number of completed iterations.
            operations: number of floating point operations so far.
            model: the model that load_checkpoint() was given.
            optimizer: the optimizer that load_checkpoint() was given.
            scheduler: the scheduler that load_checkpoint() was given.

        Raises:
            AttachError: the objects are others, or this is not the end of an iteration.
            SystemExit: the job stops here.
        """
        given = [*chunks_of(model), optimizer, scheduler]
        attached = [*self.model, self._optimizer, self._scheduler]
        if list(map(id, given)) != list(map(id, attached)):
            refuse(_STALE.format(what="another model, optimizer or scheduler than load_checkpoint()"))
        if iteration <= self.iteration:
            refuse(_STALE.format(what=f"iteration {iteration} behind iteration {self.iteration}"))
        counts = inside.counts()
        before = self._counts
        if counts and counts == before:
            refuse(_STALE.format(what=f"iteration {iteration}, and no samples were counted since the last call"))
        self._evaluated = counts.get(_VALID, 0) != before.get(_VALID, 0)
        self.iteration = iteration
        self.operations = operations
        self._counts = counts
        self._random = {}
        self.job.step_done()

    def say_on_first(self, sentence: str) -> None:
        """Write a sentence to the log, on rank 0 alone."""
        if _is_first():
            say(sentence)


def chunks_of(model: Any) -> Sequence[nn.Module]:
    """Return the parts of a model on this rank, of which Megatron makes a list."""
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _ranks_of(masters: Mapping[int, Any]) -> Callable[[Any], list[int]]:
    """Return a function that returns the ranks which keep a parameter equal.

    Args:
        masters: the parameters by the id() of the FP32 copies that an optimizer steps in their place. The function
            takes such a copy, too.
    """
    return lambda stepped: inside.ranks_alike(masters.get(id(stepped), stepped))


def _saved(name: str, rank: int, values: bool = False) -> Any:
    """Return the state that an attached object had on a rank that saved; tensors only with `values`."""
    point = ft.peek(name, rank=rank, values=values)
    return {} if point is None else point[1]


def _is_first() -> bool:
    return inside.rank() == 0


def _numbered(name: str, targets: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}_{number}" if number else name: target for number, target in enumerate(targets)}
