"""Wrap Model.train() and Model.fit() so that a kept training begins at the step it had reached.

A callback sees every step but cannot move the training to another epoch or batch: these belong to MindSpore's loop.
Therefore the two public methods are wrapped, and the data is moved by the data set's public set_init_step(). Trainings
without the callback run unchanged. The package calls `install` once, when it is imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import mindspore as ms
from mindspore.dataset.transforms.transforms import TensorOperation
from mindspore.train import Model

from ftlaunch_hooks.process.say import say
from ftlaunch_mindspore.refusal import TrainingRefused

_MARK = "kept_by_ftlaunch"


class KeptCallback(Protocol):
    """The callback that keeps a training (ExceptionCheckpoint)."""

    others: list[Any]
    """the script's own callbacks"""
    epochs: int
    """number of epochs of the training"""
    steps: int
    """number of steps in those epochs"""

    def join(self, dataset: Any, sinks: bool) -> int:
        """Find out where training begins. Return the number of steps that were completed before."""

    def only_restore(self, train_network: Any, network: Any, optimizer: Any, loss_scale: Any) -> None:
        """Restore a training whose steps were all completed before, and end it."""


OfAllRanks = Callable[[Any], KeptCallback | None]
"""Returns the callback that keeps this rank, given the script's callback or None; None where no rank has one."""


def install(kind: type[Any], of_all_ranks: OfAllRanks) -> None:
    """Wrap the methods of Model. A second call changes nothing.

    Args:
        kind: the class of the callback that keeps a training.
        of_all_ranks: returns the callback that keeps this rank; called in every rank as training begins.
    """
    for name in ("train", "fit"):
        method = getattr(Model, name)
        if not hasattr(method, _MARK):
            setattr(Model, name, _wrapped(method, kind, of_all_ranks))


def _wrapped(method: Callable[..., None], kind: type[Any], of_all_ranks: OfAllRanks) -> Callable[..., None]:
    """Return `method` with the search for a callback of class `kind` in front of it."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def train(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        callbacks = _listed(given.arguments["callbacks"])
        mine = [callback for callback in callbacks if isinstance(callback, kind)]
        if len(mine) > 1:
            raise TrainingRefused("cannot keep this training: it has two ExceptionCheckpoints, and one saves all")
        kept = of_all_ranks(mine[0] if mine else None)
        if kept is None:
            return method(*args, **kwargs)
        kept.others = [callback for callback in callbacks if callback is not kept]
        return _train(method, given, kept)

    setattr(train, _MARK, True)
    return train


def _listed(callbacks: Any) -> list[Any]:
    """Return the argument `callbacks` of Model.train(), which may be None, one callback or several, as a list."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _train(method: Callable[..., None], given: inspect.BoundArguments, kept: KeptCallback) -> None:
    """Call `method` with arguments that make it begin at the step that was reached; only restore where none is left."""
    arguments = given.arguments
    model = arguments["self"]
    dataset = arguments["train_dataset"]
    first = arguments["initial_epoch"]
    size = dataset.get_dataset_size()
    kept.epochs = arguments["epoch"] - first
    kept.steps = kept.epochs * size
    done = kept.join(dataset, arguments["dataset_sink_mode"])
    if done >= kept.steps > 0:
        say(f"all {done} steps of this training were made before")
        network, optimizer, loss_scale = _parts(model)
        kept.only_restore(
            train_network=model.train_network, network=network, optimizer=optimizer, loss_scale=loss_scale
        )
        return
    arguments["initial_epoch"] = first + done // size
    arguments["callbacks"] = [kept, *kept.others]  # first: what others do after a step is before the next boundary
    with _moved_to(dataset, done):
        method(*given.args, **given.kwargs)


def _parts(model: Model) -> tuple[Any, Any, Any]:
    """Return the network, the optimizer and the loss scale manager of a Model, as its callbacks would see them.

    Raises:
        TrainingRefused: this version of MindSpore keeps them elsewhere.
    """
    try:
        return model._network, model._optimizer, model._loss_scale_manager
    except AttributeError as error:
        raise TrainingRefused(
            f"cannot restore a training whose steps are all made: MindSpore {ms.__version__} has its network elsewhere"
            " than MindSpore 2.10"
        ) from error


@contextmanager
def _moved_to(dataset: Any, step: int) -> Iterator[None]:
    """Have the data pipeline begin at `step` within the context.

    With fast recovery off, the pipeline makes the batches before that step once more, and so draws the same random
    numbers as in a run without interruption.
    """
    fast = ms.dataset.config.get_fast_recovery()
    ms.dataset.config.set_fast_recovery(False)
    if step:
        dataset.set_init_step(step)
    try:
        yield
    finally:
        ms.dataset.config.set_fast_recovery(fast)
        if step:
            dataset.set_init_step(0)


def has_python_functions(dataset: Any) -> bool:
    """Whether a data pipeline calls Python functions, which may draw from Python's and NumPy's global generators."""
    left = [dataset]
    while left:
        node = left.pop()
        left += getattr(node, "children", None) or ()
        if isinstance(node, ms.dataset.GeneratorDataset) and type(node) is not ms.dataset.NumpySlicesDataset:
            return True
        if any(_in_python(operation) for operation in getattr(node, "operations", None) or ()):
            return True
        if getattr(node, "predicate", None) is not None or getattr(node, "per_batch_map", None) is not None:
            return True
    return False


def _in_python(operation: Any) -> bool:
    """Whether an operation of a data pipeline runs in Python, and not in MindSpore's C++."""
    implementation = getattr(operation, "implementation", None)
    return not isinstance(operation, TensorOperation) or getattr(implementation, "name", "") == "PY"
