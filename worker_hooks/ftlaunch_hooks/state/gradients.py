"""The gradients at a step boundary, and the values of parameters that no other attached object saves.

Only the script knows whether gradients will be used: one that accumulates over several steps goes on from them, one
that clears them first does not. So they are saved wherever there are any. After `optimizer.zero_grad()` at the end of a
step there are none, and a snapshot is smaller.

An attached optimizer may step parameters of no attached module: master copies, stacked weights, tensors of a script's
own. Where no other attached object has collected these already, their values are saved here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.state.parts import Loader, Names, check_names, loose_key
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import local_of
from ftlaunch_hooks.tensors.json_codec import Json, StateError
from ftlaunch_hooks.tensors.memory_layout import Restored
from ftlaunch_hooks.tensors.unreduced import UnreducedGradients

NAME = "grad"


class Gradients:
    """Collects and restores gradients of all parameters of the attached modules and optimizers.

    Every rank saves its own gradients, because they may not be reduced yet.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], names: Names
    ) -> None:
        self._modules = modules
        self._optimizers = optimizers
        self._names = names
        self._absent: dict[str, Tensor] = {}  # stand-ins for gradients that were there at an earlier snapshot
        self._dense: list[str] = []
        self._values: list[str] = []
        self._unreduced = UnreducedGradients(modules.values())

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the gradients into the collector, after all other parts; return the entry to save. Raises StateError."""
        self._check_reduced()
        owned, loose = self._parameters()
        if (values := self._collect_values(loose, collector)) != self._values:
            self._values = values
        dense: list[str] = []
        sparse: dict[str, bool] = {}
        for key, parameter in {**owned, **loose}.items():
            gradient = parameter.grad
            if gradient is None:
                if key in self._absent:  # so that the files of snapshots keep their layout
                    _put(collector, key, self._absent[key])
            elif gradient.layout is torch.sparse_coo:
                sparse[key] = gradient.is_coalesced()
                _put(collector, f"{key}.indices", gradient._indices())
                _put(collector, f"{key}.values", gradient._values())
            else:
                dense.append(key)
                if key not in self._absent and type(gradient) is Tensor:
                    self._absent[key] = torch.zeros((), dtype=gradient.dtype, device="cpu").expand(gradient.shape)
                _put(collector, key, gradient)
        if dense != self._dense:
            self._dense = dense
        return {"kind": "gradients", "dense": self._dense, "sparse": sparse, "values": self._values}

    def _check_reduced(self) -> None:
        """Raise StateError if fully_shard keeps whole, unreduced gradients beside its parameters."""
        if (name := self._unreduced.find()) is not None:
            raise StateError(
                f"cannot save gradients that are not reduced yet (of `{name}`): fully_shard with"
                " set_requires_gradient_sync(False) keeps them to itself; let one step of the loop make all backward"
                " passes up to the optimizer's step"
            )

    def plan(self, tree: Mapping[str, Json], saved: Lookup, *, values_only: bool = False) -> Loader:
        """Check that the saved gradients and values fit, without changing anything.

        Args:
            tree: the saved entry.
            saved: where the tensors are read from.
            values_only: leave the gradients alone, because they come from other batches than this rank's.

        Returns:
            A function that loads them.

        Raises:
            StateError: something does not fit.
        """
        owned, loose = self._parameters()
        parameters = {**owned, **loose}
        values = tree.get("values", ())  # not in a checkpoint of an earlier version
        check_names("parameters of no attached object", {key for key in values if key in parameters}, values)
        for key in values:
            saved.check(_stored(_value(key)), parameters[key])
        wanted = {_stored(_value(key)): parameters[key].detach() for key in values}
        if values_only:
            return lambda: saved.fill(wanted)
        known = [*tree["dense"], *tree["sparse"]]
        check_names("gradients", {key for key in known if key in parameters}, known)
        for key in tree["dense"]:
            saved.check(_stored(key), None)

        def load() -> None:
            saved.fill(wanted)
            _load(tree, parameters, saved)

        return load

    def loose(self) -> dict[str, nn.Parameter]:
        """Return the parameters that only optimizers have, by key."""
        return self._parameters()[1]

    def copies(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Return each parameter that has a gradient, with a copy of the gradient."""
        owned, loose = self._parameters()
        parameters = [*owned.values(), *loose.values()]
        return [(parameter, parameter.grad.detach().clone()) for parameter in parameters if parameter.grad is not None]

    def _parameters(self) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
        """Return the parameters of modules, and those that only optimizers have, by key; each parameter once."""
        seen: set[int] = set()
        owned: dict[str, nn.Parameter] = {}
        for name, module in self._modules.items():
            for path, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    owned[self._names.keys.get(id(parameter)) or f"{name}.{path}"] = parameter
        loose: dict[str, nn.Parameter] = {}
        for name, optimizer in self._optimizers.items():
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for position, parameter in enumerate(held):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    loose[loose_key(name, position)] = parameter
        return owned, loose

    def _collect_values(self, loose: Mapping[str, nn.Parameter], collector: Collector) -> list[str]:
        """Put values of parameters that no other object has collected into the collector; return their keys."""
        collected = collector.addresses() if loose else set()
        values = [key for key, parameter in loose.items() if local_of(parameter).data_ptr() not in collected]
        for key in values:
            owner = self._names.owner(loose[key], key)
            collector.put(
                (NAME, _value(key)), loose[key], key=_stored(_value(key)), owner=owner, restored=Restored.IN_PLACE
            )
        return values


def object_of_value(stored: str) -> str:
    """Return the key of the parameter whose value is stored under `stored`; the key begins with its optimizer's name.

    Any other key, also that of a gradient, is returned as it is.
    """
    prefix = f"{NAME}."
    suffix = _value("")
    is_value = stored.startswith(prefix) and stored.endswith(suffix)
    return stored[len(prefix) : -len(suffix)] if is_value else stored


def _stored(key: str) -> str:
    return f"{NAME}.{key.replace('@', '@@')}"


def _value(key: str) -> str:
    return f"{key}:value"


def _put(collector: Collector, key: str, tensor: Tensor) -> None:
    collector.put((NAME, key), tensor.detach(), key=_stored(key), restored=Restored.APART)


def _load(tree: Mapping[str, Json], parameters: Mapping[str, nn.Parameter], saved: Lookup) -> None:
    dense = {key: _like(parameters[key], saved.info(_stored(key))[0]) for key in tree["dense"]}
    saved.fill({_stored(key): tensor for key, tensor in dense.items()})
    for key, parameter in parameters.items():
        if key in tree["sparse"]:
            parameter.grad = _sparse(key, parameter, saved, coalesced=tree["sparse"][key])
        else:
            parameter.grad = dense.get(key)


def _like(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """Return memory for a gradient: on the parameter's device, in its memory format, sharded like the parameter."""
    return torch.empty_like(parameter.detach(), dtype=dtype)


def _sparse(key: str, parameter: nn.Parameter, saved: Lookup, *, coalesced: bool) -> Tensor:
    device = parameter.device.type
    indices, values = (saved.get(_stored(f"{key}.{part}"), device) for part in ("indices", "values"))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=coalesced, check_invariants=False)
