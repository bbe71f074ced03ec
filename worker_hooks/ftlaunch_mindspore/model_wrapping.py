"""Model.train() and Model.fit() of a training that is kept begin at the step that was reached.

A callback sees the steps, and cannot move the position: epoch and data belong to the loop. So the two methods are
wrapped: public methods, and the data set's public set_init_step(). Trainings without the callback are left alone.
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
    """The callback that keeps a training."""

    others: list[Any]  # the script's own callbacks
    epochs: int  # that training is to make
    steps: int  # in them

    def join(self, dataset: Any, sinks: bool) -> int:
        """Find out where training begins; returns the steps that were made before."""

    def only_restore(self, train_network: Any, network: Any, optimizer: Any, loss_scale: Any) -> None:
        """All steps were made before."""


OfAllRanks = Callable[[Any], KeptCallback | None]


def install(kind: type[Any], of_all_ranks: OfAllRanks) -> None:
    """From now on a Model that trains with a callback of this kind goes on where it was.

    of_all_ranks: gives this rank's callback, or one for it where another rank has one.
    """
    for name in ("train", "fit"):
        method = getattr(Model, name)
        if not hasattr(method, _MARK):
            setattr(Model, name, _wrapped(method, kind, of_all_ranks))


def _wrapped(method: Callable[..., None], kind: type[Any], of_all_ranks: OfAllRanks) -> Callable[..., None]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def train(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        found = given.arguments["callbacks"]
        callbacks = list(found) if isinstance(found, (list, tuple)) else [found] if found is not None else []
        mine = [one for one in callbacks if isinstance(one, kind)]
        if len(mine) > 1:
            raise TrainingRefused("cannot keep this training: it has two ExceptionCheckpoints, and one saves all")
        kept = of_all_ranks(mine[0] if mine else None)
        if kept is None:
            return method(*args, **kwargs)
        kept.others = [one for one in callbacks if one is not kept]
        return _train(method, given, kept)

    setattr(train, _MARK, True)
    return train


def _train(method: Callable[..., None], given: inspect.BoundArguments, kept: KeptCallback) -> None:
    arguments = given.arguments
    model, dataset = arguments["self"], arguments["train_dataset"]
    first, size = arguments["initial_epoch"], dataset.get_dataset_size()
    kept.epochs = arguments["epoch"] - first
    kept.steps = kept.epochs * size
    done = kept.join(dataset, arguments["dataset_sink_mode"])
    if done >= kept.steps > 0:
        say(f"all {done} steps of this training were made before")
        kept.only_restore(model.train_network, *_parts(model))
        return
    arguments["initial_epoch"] = first + done // size
    arguments["callbacks"] = [kept, *kept.others]  # the others' work at a step is behind the boundary before it
    with _moved_to(dataset, done):
        method(*given.args, **given.kwargs)


def _parts(model: Model) -> tuple[Any, Any, Any]:
    """Network, optimizer and loss scale manager of a Model, of which callbacks are told. Raises TrainingRefused."""
    try:
        return model._network, model._optimizer, model._loss_scale_manager
    except AttributeError as error:
        raise TrainingRefused(
            f"cannot restore a training whose steps are all made: MindSpore {ms.__version__} has its network elsewhere"
            " than MindSpore 2.10"
        ) from error


@contextmanager
def _moved_to(dataset: Any, step: int) -> Iterator[None]:
    """The data pipeline begins at a step. It makes what lies before once more, so that what it draws is the same."""
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
    """Whether Python functions of the script's make the data: they may draw from Python's and NumPy's generators."""
    left = [dataset]
    while left:
        one = left.pop()
        left += getattr(one, "children", None) or ()
        made = isinstance(one, ms.dataset.GeneratorDataset) and type(one) is not ms.dataset.NumpySlicesDataset
        operations = getattr(one, "operations", None) or ()
        if made or any(_in_python(each) for each in operations) or getattr(one, "predicate", None) is not None:
            return True
        if getattr(one, "per_batch_map", None) is not None:
            return True
    return False


def _in_python(operation: Any) -> bool:
    implementation = getattr(operation, "implementation", None)
    return not isinstance(operation, TensorOperation) or getattr(implementation, "name", "") == "PY"
