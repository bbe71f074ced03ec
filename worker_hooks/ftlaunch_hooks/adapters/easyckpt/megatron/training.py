"""A training of Megatron's: what is attached of it, and where its loop is."""

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
"""under which the state of the loop is attached"""
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
    """Megatron's model, optimizer and scheduler, and where its loop is: an object to attach."""

    job: ft.Job

    def __init__(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Raises AttachError for what cannot be kept."""
        self.model = chunks_of(model)
        self._layers = inside.layers_of(self.model)
        self.keeps_attributes_of = [*self._layers, *inside.stacks_of(self.model)]
        self.keeps_variables = inside.variables()
        self._given = (self.model, optimizer, scheduler)
        inside.check_model(self.model)
        inside.check_arguments(inside.arguments())
        self._optimizers = inside.optimizers_of(optimizer)
        self._steps = _numbered("optimizer", [self._attached_for(one) for one in self._optimizers])
        self._rerun = rerun.machine(inside.KNOWN)
        self.iteration, self.operations = 0, 0
        self._counts: dict[str, Any] = inside.counts()
        self._evaluated = False  # between the last two boundaries
        self._random: Mapping[str, Any] = {}  # that were restored, until an iteration is complete

    def _attached_for(self, optimizer: Any) -> Any:
        return Shards(optimizer, self.model) if inside.is_distributed(optimizer) else optimizer.optimizer

    def objects(self) -> dict[str, Any]:
        """What is attached, by name."""
        scheduler = self._given[2]
        scalers = [one.grad_scaler for one in self._optimizers if getattr(one, "grad_scaler", None) is not None]
        return {
            **_numbered("model", self.model),
            **self._steps,
            **_numbered("scheduler", [] if scheduler is None else [scheduler]),
            **_numbered("scaler", scalers),
            NAME: self,
        }

    def replicated(self) -> dict[str, Callable[[Any], list[int]]]:
        """Name of an object -> what gives the ranks that keep a parameter of it equal, so that one saves it for all."""
        if not inside.is_reduced(self.model):
            return {}
        shards, steps = self._shards(), zip(self._steps, self._optimizers, strict=True)
        masters = {name: inside.masters_of(one) for name, one in steps if name not in shards}
        models = _numbered("model", self.model)
        return {name: _ranks_of(masters.get(name, {})) for name in (*models, *masters)}

    def _shards(self) -> dict[str, Shards]:
        return {name: one for name, one in self._steps.items() if isinstance(one, Shards)}

    # --- what is saved --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """At a boundary."""
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
        """The loop goes on where it was."""
        self.iteration, self.operations = saved["iteration"], saved["operations"]
        self._evaluated, self._counts, self._random = saved["evaluated"], saved["counts"], saved["random"]
        inside.put_back_micro_batches(self._layers, saved["micro_batches"])
        inside.put_back_counts(self._counts)
        rerun.put_back(self._rerun, saved["rerun"])

    def check_layout(self, saved: Mapping[str, Any]) -> None:
        """Raises AttachError where the model was shared out otherwise."""
        then, here = saved["layout"], inside.layout()
        same_ranks = then["ranks"] == here["ranks"]  # attach() refuses others where each rank has saved its own
        kinds = [name for name in then if name != "ranks" and (same_ranks or not name.endswith("_rank"))]
        before, now = ({name: of[name] for name in kinds} for of in (then, here))
        if before != now:
            refuse(
                f"cannot resume: the groups of ranks have the sizes and places {now} now, and had {before}; start with"
                " the sizes and the order that they had, or with --fresh"
            )

    def merge_shards(self, saved: Mapping[str, Any], *, concat: bool) -> int | None:
        """Where another number of ranks has saved shards of a distributed optimizer: cut this rank's out of theirs.

        Returns the rank for which this one stands, None where nothing is to be merged. Raises AttachError.
        """
        then, here = saved["layout"]["ranks"], inside.layout()["ranks"]
        if then == here or not self._shards():
            return None
        if not concat:
            refuse(_CONCAT.format(then=then, here=here))
        try:
            rank = merging.stands_for(inside.layout(), [_saved(NAME, one)["layout"] for one in range(then)])
            for name, shards in self._shards().items():
                shards.merge(_saved(name, rank), partial(_saved, name))
        except merging.MergeError as why:
            refuse(_NOT_MERGED.format(then=then, here=here, why=why))
        self.tell(_MERGED.format(then=then, here=here))
        return rank

    # --- the loop -------------------------------------------------------------------------------------------

    def begin_loop(self) -> None:
        """The first iteration comes next: random numbers are those of the boundary, whatever was drawn since."""
        self.job.restore_rng()
        inside.put_back_random_states(self._random)
        every = inside.evaluates_at(self.iteration) if self.job.resumed else 0
        if every and (every == 1 or not self._evaluated):
            self.tell(_NOT_EVALUATED.format(iteration=self.iteration))

    def complete(self, iteration: int, operations: Any, given: tuple[Any, ...]) -> None:
        """`iteration` iterations are complete. Raises AttachError where the call is not at the end of one."""
        model, *others = given
        attached, *known = self._given
        if list(map(id, [*chunks_of(model), *others])) != list(map(id, [*attached, *known])):
            refuse(_STALE.format(what="another model, optimizer or scheduler than load_checkpoint()"))
        if iteration <= self.iteration:
            refuse(_STALE.format(what=f"iteration {iteration} behind iteration {self.iteration}"))
        counts, before = inside.counts(), self._counts
        if counts and counts == before:
            refuse(_STALE.format(what=f"iteration {iteration}, and no samples were counted since the last call"))
        self._evaluated = counts.get(_VALID, 0) != before.get(_VALID, 0)
        self.iteration, self.operations, self._counts, self._random = iteration, operations, counts, {}
        self.job.step_done()

    def tell(self, sentence: str) -> None:
        """Say it on one rank."""
        if _is_first():
            say(sentence)


def chunks_of(model: Any) -> Sequence[nn.Module]:
    """The parts of a model on this rank: Megatron has a list of them."""
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _ranks_of(masters: Mapping[int, Any]) -> Callable[[Any], list[int]]:
    """Of a parameter, or of the FP32 copy that an optimizer steps in its place."""
    return lambda stepped: inside.ranks_alike(masters.get(id(stepped), stepped))


def _saved(name: str, rank: int, values: bool = False) -> Any:
    """What an attached object has said of itself on a rank of the job that saved."""
    point = ft.peek(name, rank=rank, values=values)
    return {} if point is None else point[1]


def _is_first() -> bool:
    return inside.rank() == 0


def _numbered(name: str, targets: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}_{number}" if number else name: target for number, target in enumerate(targets)}
