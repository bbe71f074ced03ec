"""The gradients that parameters hold at a step boundary, as a part of a rank's state.

Whether they will be used can be known from the script alone: one that accumulates over several steps goes on from them,
one that clears them first does not. So they are saved wherever there are any. After `optimizer.zero_grad()` at the end
of a step there are none, and a snapshot is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.state.parts import Loader, Names, check_names
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.json_codec import Json, StateError
from ftlaunch_hooks.tensors.unreduced import UnreducedGradients

NAME = "grad"


class Gradients:
    """Of all parameters of the attached modules and optimizers. Every rank saves its own: they may not be reduced."""

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], names: Names
    ) -> None:
        self._modules, self._optimizers, self._names = modules, optimizers, names
        self._absent: dict[str, Tensor] = {}  # takes the place of a gradient that was there before, and is not now
        self._dense: list[str] = []
        self._unreduced = UnreducedGradients(modules.values())

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the gradients in; returns which there are. Raises StateError."""
        self._check_reduced()
        dense: list[str] = []
        sparse: dict[str, bool] = {}
        for key, parameter in self._parameters():
            gradient = parameter.grad
            if gradient is None:
                if key in self._absent:  # the files of a snapshot keep their layout
                    _put(collector, key, self._absent[key])
            elif gradient.layout is torch.sparse_coo:
                sparse[key] = gradient.is_coalesced()
                _put(collector, f"{key}.indices", gradient._indices())
                _put(collector, f"{key}.values", gradient._values())
            else:
                dense.append(key)
                if key not in self._absent and type(gradient) is Tensor:
                    self._absent[key] = torch.zeros((), dtype=gradient.dtype).expand(gradient.shape)
                _put(collector, key, gradient)
        if dense != self._dense:
            self._dense = dense
        return {"kind": "gradients", "dense": self._dense, "sparse": sparse}

    def _check_reduced(self) -> None:
        """Raises StateError for gradients that fully_shard keeps beside its parameters, whole and unreduced."""
        if (name := self._unreduced.find()) is not None:
            raise StateError(
                f"cannot save gradients that are not reduced yet (of `{name}`): fully_shard with"
                " set_requires_gradient_sync(False) keeps them to itself; let one step of the loop make all backward"
                " passes up to the optimizer's step"
            )

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved fits, changing nothing; returns what loads it. Raises StateError."""
        parameters = dict(self._parameters())
        known = [*tree["dense"], *tree["sparse"]]
        check_names("gradients", {key for key in known if key in parameters}, known)
        for key in tree["dense"]:
            saved.check(_stored(key), None)
        return lambda: _load(tree, parameters, saved)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Key and parameter, each parameter once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            for path, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield self._names.keys.get(id(parameter)) or f"{name}.{path}", parameter
        for name, optimizer in self._optimizers.items():
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for position, parameter in enumerate(held):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{name}.{position}", parameter


def _stored(key: str) -> str:
    return f"{NAME}.{key.replace('@', '@@')}"


def _put(collector: Collector, key: str, tensor: Tensor) -> None:
    collector.put((NAME, key), tensor.detach(), key=_stored(key))


def _load(tree: Mapping[str, Json], parameters: Mapping[str, nn.Parameter], saved: Lookup) -> None:
    dense = {key: _like(parameters[key], saved.info(_stored(key))[0]) for key in tree["dense"]}
    saved.fill({_stored(key): tensor for key, tensor in dense.items()})
    for key, parameter in parameters.items():
        if key in tree["sparse"]:
            parameter.grad = _sparse(key, parameter, saved, coalesced=tree["sparse"][key])
        else:
            parameter.grad = dense.get(key)


def _like(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """Memory for a gradient: on the parameter's device, in its memory format, sharded as it is."""
    return torch.empty_like(parameter.detach(), dtype=dtype)


def _sparse(key: str, parameter: nn.Parameter, saved: Lookup, *, coalesced: bool) -> Tensor:
    device = parameter.device.type
    indices, values = (saved.get(_stored(f"{key}.{part}"), device) for part in ("indices", "values"))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=coalesced, check_invariants=False)
