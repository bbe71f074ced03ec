"""Says once what keeps a run from being exact: state of the training that is saved with no attached object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ftlaunch_contract.pages.page import Page
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.comm_hooks import stateful_hooks


class UnsavedState:
    """Looks for it at attach(), and whenever an optimizer steps."""

    def __init__(self, objects: Mapping[str, Any], page: Page, rank: int) -> None:
        """objects: as attach() takes them, the frozen ones included. page: of this rank."""
        self._objects, self._page = objects, page
        self._modules = {name: target for name, target in objects.items() if isinstance(target, nn.Module)}
        self._attached = {id(target) for target in objects.values()}
        self._states = {id(target.state) for target in objects.values() if isinstance(target, Optimizer)}
        self._others: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # the step in which each was first seen
        if rank == 0:  # a hook is registered on all ranks alike
            self._say_hooks()
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        """Look no longer."""
        self._hook.remove()

    def _say_hooks(self) -> None:
        for hook in stateful_hooks(list(self._modules.values()), list(self._objects.values())):
            say(
                f"DistributedDataParallel has a communication hook with state ({hook}), which is not saved: after a"
                " resume it begins anew, and the run is not exact"
            )

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer that is not attached counts once it has lived longer than one step."""
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
