"""Says once what keeps a run from being exact: state of the training that is saved with no attached object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ftlaunch_contract.pages.page import Page
from ftlaunch_hooks.observe.unsaved.data_order import DataOrder
from ftlaunch_hooks.observe.unsaved.loop_position import LoopPosition
from ftlaunch_hooks.observe.unsaved.survey import Survey
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.state import Choices, RankState
from ftlaunch_hooks.tensors.ddp.comm_hooks import parallel_modules, stateful_hooks


class UnsavedState:
    """Looks for it at attach(), as a loop begins, at snapshots, and whenever an optimizer steps."""

    def __init__(
        self, objects: Mapping[str, Any], page: Page, rank: int, state: RankState, choices: Choices
    ) -> None:  # fmt: skip
        """objects: as attach() takes them, the frozen ones included. page: of this rank. state: its restored state."""
        self._objects, self._page = objects, page
        self._modules = {name: target for name, target in objects.items() if isinstance(target, nn.Module)}
        self._attached = {id(target) for target in objects.values()}
        self._states = {id(target.state) for target in objects.values() if isinstance(target, Optimizer)}
        self._others: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # the step in which each was first seen
        self._hooks_told: set[str] = set()
        self._at_end: object = None
        # rank 0 speaks for all; what was drawn into variables that are kept is drawn once
        self._drawn = rank != 0 or choices.keep
        self._parallel = parallel_modules(list(self._modules.values())) if rank == 0 else []  # all ranks are alike
        self._hooks_seen = -1
        self._look_for_hooks()
        self._order = DataOrder(objects, page) if rank == 0 else None
        self._survey = Survey(objects, choices, state)
        state.loop_variables = self._survey
        self._position = LoopPosition(objects, self._survey.kept_by_objects, self._survey.tell_lost)
        self.due = 0
        """the step at which to look at the loop, if none of steps() has begun before"""
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def step_made(self, *, own: bool) -> None:
        """The first step in this process is complete: look at the loop in which it was made.

        own: the loop is the script's own, without steps().
        """
        self.due = sys.maxsize
        frame = sys._getframe(1)
        self._position.look(frame, own=own)
        self._survey.first_step_made(frame, own=own)

    def loop_left(self, random_numbers: object) -> None:
        """A loop of steps() has made its steps. random_numbers: see RankState."""
        self._at_end = random_numbers

    def loop_begins(self, step: int, random_numbers: object, *, end: int | None = None) -> None:
        """A loop whose steps are counted begins: put back the variables of the loop that an earlier life has saved.

        Called from the frame that hands out the first step, after attach() has restored and before that step. A job
        that goes on behind this moment passes it with the numbers of a later step. step: steps made. end: steps that
        are made as the loop ends, where that is known; a loop that ended before `step` is passed by.
        """
        frame = sys._getframe(1)
        if end is None or end >= step:
            self._position.look(frame, own=False)
            self._survey.begin(frame)
        else:
            self._survey.pass_loop(frame)
        if self._at_end is not None and self._at_end != random_numbers and not self._drawn:
            self._drawn = True
            say(
                "random numbers are drawn between two loops of steps(): a job that goes on in a later loop draws others"
                " there, and is not exact where training uses them; draw them from a generator seeded for the loop"
            )
        self._at_end = None

    def inner_loop_begins(self) -> None:
        """A loop begins, perhaps in a function that was called since the loop around it began.

        What an earlier life has saved at this place is put back, if that has not been done in the loop around.
        """
        self._survey.begin(sys._getframe(1))

    def pass_by(self, is_made_again: Callable[[], bool]) -> None:
        """Say nothing of data that the script goes through while `is_made_again` holds, see DataOrder."""
        if self._order is not None:
            self._order.is_made_again = is_made_again

    def close(self) -> None:
        """Look no longer."""
        self._hook.remove()
        if self._order is not None:
            self._order.close()

    def _look_for_hooks(self) -> None:
        """A script may register one at any time."""
        registered = sum(len(module._comm_hooks) for module in self._parallel)
        if registered == self._hooks_seen:
            return
        self._hooks_seen = registered
        for hook in stateful_hooks(self._parallel, list(self._objects.values())):
            if hook in self._hooks_told:
                continue
            self._hooks_told.add(hook)
            say(
                f"DistributedDataParallel has a communication hook with state ({hook}), which is not saved: after a"
                " resume it begins anew, and the run is not exact"
            )

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer that is not attached counts once it has lived longer than one step."""
        if self._parallel:
            self._look_for_hooks()
        if id(optimizer) in self._attached:
            return
        first = self._others.setdefault(optimizer, self._page.step)
        if first == self._page.step or first < 0 or id(optimizer.state) in self._states:
            return
        self._others[optimizer] = -1
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, module in self._modules.items():
            if any(id(parameter) in stepped for parameter in module.parameters()):
                say(
                    f"an optimizer ({type(optimizer).__name__}) that is not attached steps parameters of `{name}`:"
                    " unless an attached object saves its state, a resumed run is not exact; attach it, too"
                )
                return
