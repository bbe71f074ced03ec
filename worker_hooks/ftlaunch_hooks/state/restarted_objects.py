"""Objects that begin anew in a run that otherwise goes on: new data with the old schedule, or a new schedule.

In `attach(anew=...)` the script gives a word with the name of such an object, and the word is saved with the object.
State that was saved under another word, or under none, is not restored: the object begins as the script made it. State
that was saved under the same word is restored, so that the same script resumes after a kill like any other. A schedule
goes on at the position of the old one, rescaled where a step takes another number of samples. This is MindSpore
Transformers' incremental resume training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from ftlaunch_hooks.data.batch_sampler import PositionedSampler, global_batch_of
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.parts import list_names
from ftlaunch_hooks.tensors.json_codec import Json, StateError

_WORD = "anew"  # in an object's saved tree
_NOT_MOVABLE = (ChainedScheduler, ReduceLROnPlateau)  # the first has no position, the second depends on measurements
_POSITION = "last_epoch"  # the key of a position in the state_dict() of torch's schedulers


class RestartedObjects:
    """Decides which attached objects begin anew, and where new schedules and samplers begin."""

    def __init__(self, words: Mapping[str, str], objects: Mapping[str, Any]) -> None:
        """Take the words that the script has given.

        Args:
            words: name of an attached object -> word.
            objects: name -> attached object, of those that are saved.

        Raises:
            StateError: a name or a word is not valid.
        """
        if unknown := words.keys() - objects.keys():
            raise StateError(f"cannot attach: anew names {list_names(unknown)}, which no saved object is attached as")
        if bad := [name for name, word in words.items() if not isinstance(word, str) or not word]:
            raise StateError(
                f"cannot attach: anew gives {list_names(bad)} no word, as in anew={{{bad[0]!r}: 'part 2'}}"
            )
        self._words = words
        self._objects = objects

    def mark(self, name: str, tree: dict[str, Json]) -> dict[str, Json]:
        """Return the saved tree of an object, with its word added if it has one."""
        return {**tree, _WORD: self._words[name]} if name in self._words else tree

    def names(self, state: Mapping[str, Json]) -> set[str]:
        """Return the names of the objects that begin anew when `state` is resumed."""
        return {name for name, word in self._words.items() if state.get(name, {}).get(_WORD) != word}

    def plan(
        self, state: Mapping[str, Json], step: int, consumed: int, *, should_log: bool
    ) -> list[Callable[[], None]]:
        """Return functions that move the new schedules, to be called once the other objects are restored.

        New samplers are counted on from `consumed` at once.

        Args:
            state: name of an object -> its saved tree.
            step: the step at which the state was saved.
            consumed: samples consumed over all ranks at that step.
            should_log: whether this rank writes to the log.

        Raises:
            StateError: an object cannot begin anew.
        """
        loaders = []
        for name in sorted(self.names(state)):
            target = self._objects[name]
            how = "as the script made it"
            if isinstance(target, LRScheduler):
                position, why = self._position(name, state, step)
                loaders.append(_mover(name, target, position))
                how = f"at position {position}{why}: from here on learning rates are those of the new schedule"
            elif isinstance(target, PositionedSampler):
                target.count_on(consumed)
                how = f"at its first sample; samples are counted on from {consumed}"
            if should_log:
                say(f"`{name}` begins anew ({self._words[name]}), {how}; what was saved of it is not restored")
        return loaders

    def _position(self, name: str, state: Mapping[str, Json], step: int) -> tuple[int, str]:
        """Return where a new schedule begins: at the same share of the data that the old one had reached.

        A schedule that does not count the job's steps (it may count epochs) keeps its position. The second value is a
        clause on what was changed; empty if nothing was. Raises StateError if no position was saved.
        """
        position = _saved_position(name, state.get(name))
        changes = self._batch_changes(state)
        if not position or all(before == now for before, now in changes):
            return position, ""
        if len(changes) > 1:
            return position, ", which is not rescaled, as the samplers do not tell of one and the same change"
        if position != step:
            return position, f", which is not rescaled, as it does not count the {step} steps of the job"
        [(before, now)] = changes
        return position * before // now, f" ({position} steps of {before} samples are as many of {now})"

    def _batch_changes(self, state: Mapping[str, Json]) -> set[tuple[int, int]]:
        """Return the distinct pairs of samples per step, when `state` was saved and now, of the samplers in `state`."""
        pairs = set()
        for name, target in self._objects.items():
            saved = (state.get(name) or {}).get("state")
            if isinstance(target, PositionedSampler) and isinstance(saved, dict) and (before := global_batch_of(saved)):
                pairs.add((before, target.global_batch))
        return pairs


def _saved_position(name: str, tree: Json) -> int:
    """Return the position of the schedule saved under a name; 0 where none was saved.

    Raises:
        StateError: a schedule without a position was saved.
    """
    if tree is None:
        return 0
    state = tree.get("state")
    position = state.get(_POSITION) if isinstance(state, dict) else None
    if not isinstance(position, int):
        raise StateError(f"cannot begin `{name}` anew: what was saved of it says no position, `{_POSITION}`")
    return position


def _mover(name: str, scheduler: LRScheduler, position: int) -> Callable[[], None]:
    """Return a function that moves a schedule to a position step by step from its beginning.

    Schedules are defined by their steps: not all have a closed form, and those that have differ in the last bits.
    Raises StateError for a schedule that cannot be moved.
    """
    if isinstance(scheduler, _NOT_MOVABLE):
        raise StateError(f"cannot begin `{name}` anew: a {type(scheduler).__name__} cannot be moved to a position")
    groups = scheduler.optimizer.param_groups
    before = [{key: value for key, value in group.items() if key in ("lr", "initial_lr")} for group in groups]

    def move() -> None:
        for group, values in zip(scheduler.optimizer.param_groups, before, strict=True):
            group.update(values)
        with warnings.catch_warnings():
            # torch warns of a scheduler's step before the optimizer's, but earlier runs have made those steps.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            for _ in range(scheduler.last_epoch, position):
                scheduler.step()

    return move
