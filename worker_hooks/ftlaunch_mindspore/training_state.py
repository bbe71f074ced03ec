"""The state of a training of MindSpore's: parameters, the optimizer's, the loss scale; to arrays and JSON, and back."""

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
    """What changes in a training, but for random numbers and the data position."""

    def __init__(self, rank: int, train_network: Any, network: Any, optimizer: Any, loss_scale: Any) -> None:
        """rank: every rank saves all it holds, as its own. network: the script's, within the train network.

        Raises TrainingRefused for what cannot be saved.
        """
        self._rank = rank
        if optimizer is not None and not isinstance(optimizer, nn.Optimizer):
            raise TrainingRefused(
                f"cannot keep this training: its optimizer is a {type(optimizer).__name__}; only those of mindspore.nn"
                " have all of their state in parameters"
            )
        weights = {id(one) for one in network.get_parameters()}
        self._weights: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        for one in train_network.get_parameters():
            group = self._weights if id(one) in weights else self._others
            if one.name in group:
                raise TrainingRefused(f"cannot keep this training: two of its parameters are called {one.name}")
            _check_dtype(one)
            group[one.name] = one
        self._loss_scale = loss_scale

    def arrays(self) -> dict[str, dict[str, Array]]:
        """Group of files -> key -> values, as they are now."""
        return {
            "model": {self._key("network", name): one.asnumpy() for name, one in self._weights.items()},
            "opt": {self._key("training", name): one.asnumpy() for name, one in self._others.items()},
        }

    def trees(self) -> dict[str, Json]:
        """What common.json says of it."""
        others = {name: {"__tensor__": self._key("training", name)} for name in self._others}
        return {
            "network": {"kind": "module", "tensors": list(self._weights), "extra": {}},
            "training": {"kind": KIND, "parameters": others, "loss_scale": _numbers(self._loss_scale)},
        }

    def restore(self, trees: Mapping[str, Json], arrays: Mapping[str, Array]) -> None:
        """Put back what was saved; nothing has changed where it raises TrainingRefused."""
        training = trees.get("training")
        if not isinstance(training, dict) or training.get("kind") != KIND:
            raise TrainingRefused("cannot restore: this is not the checkpoint of a training of MindSpore's")
        found = {
            id(one): arrays.get(self._key(part, name))
            for part, group in (("network", self._weights), ("training", self._others))
            for name, one in group.items()
        }
        self._check(found, set(trees["network"]["tensors"]) | set(training["parameters"]))
        for one in (*self._weights.values(), *self._others.values()):
            one.set_data(ms.Tensor(found[id(one)], one.dtype))
        for name, value in training["loss_scale"].items():
            setattr(self._loss_scale, name, value)

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        """Take the parameters of the network alone, by name; nothing has changed where it raises TrainingRefused."""
        if lacking := sorted(self._weights.keys() - arrays.keys()):
            raise TrainingRefused(f"cannot load weights: the parameter {lacking[0]} is not among them")
        if surplus := sorted(arrays.keys() - self._weights.keys()):
            raise TrainingRefused(f"cannot load weights: {surplus[0]} is among them, and no parameter of the network")
        for name, one in self._weights.items():
            self._check_alike(name, one, arrays[name])
        for name, one in self._weights.items():
            one.set_data(ms.Tensor(arrays[name], one.dtype))

    def _check(self, found: Mapping[int, Array | None], saved: set[str]) -> None:
        """Raises TrainingRefused unless all parameters, and no others, were saved, with their shapes."""
        own = {**self._weights, **self._others}
        if surplus := sorted(saved - set(own)):
            raise TrainingRefused(f"cannot restore: the parameter {surplus[0]} was saved, and is not there now")
        for name, one in own.items():
            array = found[id(one)]
            if array is None:
                raise TrainingRefused(f"cannot restore: the parameter {name} is there now, and was not saved")
            self._check_alike(name, one, array)

    @staticmethod
    def _check_alike(name: str, one: Any, array: Array) -> None:
        """Raises TrainingRefused unless an array has the shape and the type of a parameter."""
        kind = one.asnumpy().dtype.name.replace("bfloat16", "float32")  # as arrays.read() gives it
        if (array.shape, array.dtype.name) != (tuple(one.shape), kind):
            raise TrainingRefused(
                f"cannot restore: the parameter {name} is {one.dtype} of shape {tuple(one.shape)} now, and was"
                f" {array.dtype.name} of shape {array.shape}"
            )

    def _key(self, part: str, name: str) -> str:
        return own_key(f"{part}.{name}".replace("@", "@@"), self._rank)


def _check_dtype(parameter: Any) -> None:
    if (kind := parameter.asnumpy().dtype.name) not in DTYPES:
        raise TrainingRefused(f"cannot keep this training: its parameter {parameter.name} is of {kind}")


def _numbers(loss_scale: Any) -> dict[str, Json]:
    """What a loss scale manager holds besides its parameters."""
    held = vars(loss_scale) if loss_scale is not None else {}
    return {name: value for name, value in held.items() if isinstance(value, (bool, int, float))}
