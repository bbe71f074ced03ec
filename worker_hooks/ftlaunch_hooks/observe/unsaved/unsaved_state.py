"""Tells the user once what keeps a run from being exact: state of the training that no attached object saves.

The Job calls an UnsavedState in the thread that trains: at attach(), as loops begin and end, and after the first step.
A hook of optimizer steps runs in the thread that steps the optimizer.
"""

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
    """Searches unsaved state at attach(), as a loop begins, at snapshots, and whenever an optimizer steps."""

    def __init__(
        self, objects: Mapping[str, Any], page: Page, rank: int, state: RankState, choices: Choices
    ) -> None:  # fmt: skip
        """Begin to observe, and register the survey of variables with the rank's state.

        Args:
            objects: attached objects by name, including the frozen ones.
            page: the page of this rank.
            rank: the rank's number in the job. Most sentences are written by rank 0 alone, because ranks are alike.
            state: the rank's state, restored.
            choices: the options of attach().
        """
        self._objects = objects
        self._page = page
        self._modules = {name: target for name, target in objects.items() if isinstance(target, nn.Module)}
        self._attached = {id(target) for target in objects.values()}
        self._states = {id(target.state) for target in objects.values() if isinstance(target, Optimizer)}
        self._first_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """the step in which an optimizer that is not attached was first seen; -1 once the user was told"""
        self._reported_hooks: set[str] = set()
        self._numbers_at_end: object = None
        """random numbers at the end of the newest loop of steps()"""
        # Numbers that were drawn into variables that are kept are not drawn again.
        self._are_draws_reported = rank != 0 or choices.keep
        self._parallel = parallel_modules(list(self._modules.values())) if rank == 0 else []
        self._hooks_seen = -1
        self._search_hooks()
        self._order = DataOrder(objects, page) if rank == 0 else None
        self._survey = Survey(objects, choices, state)
        state.loop_variables = self._survey
        self._position = LoopPosition(objects, self._survey.kept_by_objects, self._survey.report_lost)
        self.due = 0
        """number of the step after which `step_made` is to be called; sys.maxsize once it was called"""
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def step_made(self, *, own: bool) -> None:
        """Search the loop in which the first step of this process was made. The caller's frame must be in the loop.

        Args:
            own: whether the loop is the script's own, without steps().
        """
        self.due = sys.maxsize
        frame = sys._getframe(1)
        self._position.check(frame, own=own)
        self._survey.first_step_made(frame, cannot_put_back=own)

    def loop_left(self, random_numbers: object) -> None:
        """Note the end of a loop of steps(). random_numbers: RankState.random_numbers() at this moment."""
        self._numbers_at_end = random_numbers

    def loop_begins(self, step: int, random_numbers: object, *, end: int | None = None) -> None:
        """Put back the variables that an earlier life has saved of a loop, as the loop begins.

        The frame that hands out the first step calls this, after attach() has restored the state and before that step.
        A loop that ended before `step` is passed by.

        Args:
            step: number of completed steps.
            random_numbers: RankState.random_numbers() at this moment.
            end: number of completed steps at the end of the loop, where known.
        """
        frame = sys._getframe(1)
        if end is None or end >= step:
            self._position.check(frame, own=False)
            self._survey.begin(frame)
        else:
            self._survey.pass_loop(frame)
        has_drawn = self._numbers_at_end is not None and self._numbers_at_end != random_numbers
        if has_drawn and not self._are_draws_reported:
            self._are_draws_reported = True
            say(
                "random numbers are drawn between two loops of steps(): a job that goes on in a later loop draws others"
                " there, and is not exact where training uses them; draw them from a generator seeded for the loop"
            )
        self._numbers_at_end = None

    def inner_loop_begins(self) -> None:
        """Put back the values that an earlier life has saved at this place, as an inner loop begins.

        The inner loop may be in a function that was called after the outer loop began. Values that were put back in the
        outer loop stay.
        """
        self._survey.begin(sys._getframe(1))

    def set_is_repeated(self, is_repeated: Callable[[], bool]) -> None:
        """Set the function `DataOrder.is_repeated`. While it returns True, no sentence about data is written."""
        if self._order is not None:
            self._order.is_repeated = is_repeated

    def close(self) -> None:
        """Stop observing."""
        self._hook.remove()
        if self._order is not None:
            self._order.close()

    def _search_hooks(self) -> None:
        """Tell of communication hooks with state that are new. A script may register a hook at any time."""
        registered = sum(len(module._comm_hooks) for module in self._parallel)
        if registered == self._hooks_seen:
            return
        self._hooks_seen = registered
        for hook in stateful_hooks(self._parallel, list(self._objects.values())):
            if hook in self._reported_hooks:
                continue
            self._reported_hooks.add(hook)
            say(
                f"DistributedDataParallel has a communication hook with state ({hook}), which is not saved: after a"
                " resume it begins anew, and the run is not exact"
            )

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Tell of an optimizer that is not attached, once it has lived longer than one step."""
        if self._parallel:
            self._search_hooks()
        if id(optimizer) in self._attached:
            return
        first = self._first_steps.setdefault(optimizer, self._page.step)
        if first == self._page.step or first < 0 or id(optimizer.state) in self._states:
            return
        self._first_steps[optimizer] = -1
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, module in self._modules.items():
            if any(id(parameter) in stepped for parameter in module.parameters()):
                say(
                    f"an optimizer ({type(optimizer).__name__}) that is not attached steps parameters of `{name}`:"
                    " unless an attached object saves its state, a resumed run is not exact; attach it, too"
                )
                return
