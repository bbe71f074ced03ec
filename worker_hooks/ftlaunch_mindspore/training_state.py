"""Convert the state of a MindSpore training to arrays and JSON, and restore it from them.

The state is the parameters of the network and of the optimizer, and the loss scale. ExceptionCheckpoint uses one
TrainingState, on the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import nn

from ftlaunch_contract.shared_keys import own_key
from ftlaunch_mindspore.refusal import TrainingRefused
from ftlaunch_mindspore.saving.arrays import DTYPES, Array
from ftlaunch_mindspore.saving.saved_step import KIND

Json = Any


class TrainingState:
    """Everything that changes in a training, except random numbers and the position in the data."""

    def __init__(self, rank: int, train_network: Any, network: Any, optimizer: Any, loss_scale: Any) -> None:
        """Find the parameters.

        Args:
            rank: this process's rank, which is part of all keys: every rank saves what it holds as its own.
            train_network: the cell that MindSpore trains, with loss, optimizer and loss scaling.
            network: the script's network, within `train_network`.
            optimizer: an optimizer of mindspore.nn, or None.
            loss_scale: the loss scale manager, or None.

        Raises:
            TrainingRefused: a part of the state cannot be saved.
        """
        self._rank = rank
        if optimizer is not None and not isinstance(optimizer, nn.Optimizer):
            raise TrainingRefused(
                f"cannot keep this training: its optimizer is a {type(optimizer).__name__}; only those of mindspore.nn"
                " have all of their state in parameters"
            )
        weights = {id(parameter) for parameter in network.get_parameters()}
        self._weights: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        for parameter in train_network.get_parameters():
            group = self._weights if id(parameter) in weights else self._others
            name = parameter.name
            if name in group:
                raise TrainingRefused(f"cannot keep this training: two of its parameters are called {name}")
            _check_dtype(parameter)
            group[name] = parameter
        self._loss_scale = loss_scale

    def arrays(self) -> dict[str, dict[str, Array]]:
        """Return the present values: group of files -> key -> array."""
        return {
            "model": {self._key("network", name): weight.asnumpy() for name, weight in self._weights.items()},
            "opt": {self._key("training", name): other.asnumpy() for name, other in self._others.items()},
        }

    def trees(self) -> dict[str, Json]:
        """Return the part of common.json: the names and keys of parameters, and the loss scale."""
        others = {name: {"__tensor__": self._key("training", name)} for name in self._others}
        return {
            "network": {"kind": "module", "tensors": list(self._weights), "extra": {}},
            "training": {"kind": KIND, "parameters": others, "loss_scale": _numbers(self._loss_scale)},
        }

    def restore(self, trees: Mapping[str, Json], arrays: Mapping[str, Array]) -> None:
        """Restore a saved state.

        Args:
            trees: what `trees` returned.
            arrays: values by key, of all groups of files.

        Raises:
            TrainingRefused: the saved state is not of this training; nothing has changed then.
        """
        training = trees.get("training")
        if not isinstance(training, dict) or training.get("kind") != KIND:
            raise TrainingRefused("cannot restore: this is not the checkpoint of a training of MindSpore's")
        found = {
            id(parameter): arrays.get(self._key(part, name))
            for part, group in (("network", self._weights), ("training", self._others))
            for name, parameter in group.items()
        }
        self._check(found, set(trees["network"]["tensors"]) | set(training["parameters"]))
        for parameter in (*self._weights.values(), *self._others.values()):
            parameter.set_data(ms.Tensor(found[id(parameter)], parameter.dtype))
        for name, value in training["loss_scale"].items():
            setattr(self._loss_scale, name, value)

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        """Load the parameters of the network alone.

        Args:
            arrays: values by the names of parameters.

        Raises:
            TrainingRefused: names, shapes or types differ from the network's; nothing has changed then.
        """
        if lacking := sorted(self._weights.keys() - arrays.keys()):
            raise TrainingRefused(f"cannot load weights: the parameter {lacking[0]} is not among them")
        if surplus := sorted(arrays.keys() - self._weights.keys()):
            raise TrainingRefused(f"cannot load weights: {surplus[0]} is among them, and no parameter of the network")
        for name, parameter in self._weights.items():
            self._check_alike(name, parameter, arrays[name])
        for name, parameter in self._weights.items():
            parameter.set_data(ms.Tensor(arrays[name], parameter.dtype))

    def _check(self, found: Mapping[int, Array | None], saved: set[str]) -> None:
        """Raise TrainingRefused unless all parameters, and no others, were saved, with their shapes and types.

        Args:
            found: the saved values by the id() of the parameter, None for a parameter without any.
            saved: the names of all saved parameters.
        """
        own = {**self._weights, **self._others}
        if surplus := sorted(saved - set(own)):
            raise TrainingRefused(f"cannot restore: the parameter {surplus[0]} was saved, and is not there now")
        for name, parameter in own.items():
            array = found[id(parameter)]
            if array is None:
                raise TrainingRefused(f"cannot restore: the parameter {name} is there now, and was not saved")
            self._check_alike(name, parameter, array)

    @staticmethod
    def _check_alike(name: str, parameter: Any, array: Array) -> None:
        """Raise TrainingRefused unless an array has the shape and the type of a parameter."""
        kind = parameter.asnumpy().dtype.name.replace("bfloat16", "float32")  # arrays.read() widens bfloat16
        shape = tuple(parameter.shape)
        if (array.shape, array.dtype.name) != (shape, kind):
            raise TrainingRefused(
                f"cannot restore: the parameter {name} is {parameter.dtype} of shape {shape} now, and was"
                f" {array.dtype.name} of shape {array.shape}"
            )

    def _key(self, part: str, name: str) -> str:
        """Return the key of this rank for a parameter of `part`."""
        return own_key(f"{part}.{name}".replace("@", "@@"), self._rank)


def _check_dtype(parameter: Any) -> None:
    """Raise TrainingRefused for a parameter whose type tensor files lack."""
    if (kind := parameter.asnumpy().dtype.name) not in DTYPES:
        raise TrainingRefused(f"cannot keep this training: its parameter {parameter.name} is of {kind}")


def _numbers(loss_scale: Any) -> dict[str, Json]:
    """Return the numbers among the attributes of a loss scale manager, which are no parameters."""
    held = vars(loss_scale) if loss_scale is not None else {}
    return {name: value for name, value in held.items() if isinstance(value, (bool, int, float))}
