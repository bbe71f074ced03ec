"""Move the beginning of a Trainer's loop, and find the loop's sum of losses, in transformers 4 and 5.

The two major versions have different loops, for which there is one class each; `loop_of` chooses. inside.py describes
what `begins_at` and `loss_sum` promise, and is the only caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import transformers.trainer

OnBegin = Callable[[int, int], None]
"""Takes the number of a pass over the data, and the number of its batches that were consumed."""
Calls = Mapping[str, Callable[..., Any]]
"""name of a method -> what is called instead"""
_VARIABLES = {"tr_loss", "epochs_trained", "steps_trained_in_current_epoch"}  # local variables of transformers 4's loop


class LoopOfMethods:
    """The loop of transformers 5: a method returns the place at which it begins, and the sum is an attribute."""

    methods = ("_init_training_state",)
    methods_of_engine = ("_prepare_for_training",)
    numbers = ("_initial_num_input_tokens_seen", "_tr_loss")

    @contextmanager
    def begins_at(self, trainer: Any, place: tuple[int, int] | None, on_begin: OnBegin) -> Iterator[None]:
        """Begin a training at `place` (inside.begins_at)."""
        find = trainer._init_training_state

        def begin(*args: Any, **kwargs: Any) -> tuple[int, int]:
            as_before(trainer, begun)
            found = find(*args, **kwargs)
            number, had = found if place is None else place
            had = 0 if trainer.args.ignore_data_skip else had
            on_begin(number, had)
            return number, had

        begun = {"_init_training_state": begin}
        with instead(trainer, begun):
            yield

    @contextmanager
    def engine_loads_nothing(self, trainer: Any) -> Iterator[None]:
        """Build DeepSpeed's engine within the context without loading a checkpoint."""
        build = trainer._prepare_for_training
        with instead(trainer, {"_prepare_for_training": lambda steps, loader, place: build(steps, loader, None)}):
            yield

    def loss_sum(self, trainer: Any) -> Any:
        """Return the tensor of the sum (inside.loss_sum)."""
        return trainer._tr_loss


class LoopInOne:
    """The loop of transformers 4: one method, with the sum in a variable, that computes its place from the steps."""

    methods = ("set_initial_training_values", "_load_callback_state", "_inner_training_loop")
    methods_of_engine = ()
    numbers = ()

    @contextmanager
    def begins_at(self, trainer: Any, place: tuple[int, int] | None, on_begin: OnBegin) -> Iterator[None]:
        """Begin a training at `place` (inside.begins_at).

        The number of steps is changed to that of the place; attach() then restores the true number.
        """
        plan = trainer.set_initial_training_values
        load = trainer._load_callback_state
        steps_in_pass = 0

        def planned(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps_in_pass
            values = plan(*args, **kwargs)
            steps_in_pass = values[1]
            return values

        def loaded(*args: Any, **kwargs: Any) -> None:
            as_before(trainer, begun)
            load(*args, **kwargs)
            state = trainer.state
            batches_per_step = trainer.args.gradient_accumulation_steps
            if place is not None:
                number, had = place
                state.global_step = number * steps_in_pass + had // batches_per_step
            number, steps = divmod(state.global_step, steps_in_pass)
            on_begin(number, 0 if trainer.args.ignore_data_skip else steps * batches_per_step)

        begun = {"set_initial_training_values": planned, "_load_callback_state": loaded}
        with instead(trainer, begun):
            yield

    @contextmanager
    def engine_loads_nothing(self, trainer: Any) -> Iterator[None]:
        """Build DeepSpeed's engine within the context without loading a checkpoint."""
        load = transformers.trainer.deepspeed_load_checkpoint
        transformers.trainer.deepspeed_load_checkpoint = lambda *args, **kwargs: None
        try:
            yield
        finally:
            transformers.trainer.deepspeed_load_checkpoint = load

    def loss_sum(self, trainer: Any) -> Any:
        """Return the tensor of the sum (inside.loss_sum), a variable of the loop that has called the callback."""
        frame = sys._getframe(1)
        while frame.f_code.co_name != "_inner_training_loop" or frame.f_locals.get("self") is not trainer:
            assert frame.f_back is not None, "the Trainer is not in its loop"
            frame = frame.f_back
        return frame.f_locals["tr_loss"]


Loop = LoopOfMethods | LoopInOne


def loop_of(trainer: Any) -> Loop:
    """Return the kind of loop that a Trainer has."""
    code = getattr(type(trainer)._inner_training_loop, "__code__", None)
    return LoopInOne() if code is not None and {*code.co_varnames} >= _VARIABLES else LoopOfMethods()


@contextmanager
def instead(trainer: Any, calls: Calls) -> Iterator[None]:
    """Replace methods of this Trainer, and of no other, within the context."""
    vars(trainer).update(calls)
    try:
        yield
    finally:
        as_before(trainer, calls)


def as_before(trainer: Any, calls: Calls) -> None:
    """Give a Trainer the methods of its class again in the place of those in `calls`."""
    for name in calls:
        vars(trainer).pop(name, None)
