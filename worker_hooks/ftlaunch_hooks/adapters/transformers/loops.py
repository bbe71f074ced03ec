"""Where a Trainer's loop begins, and the losses that it sums up: transformers has had loops of two kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import transformers.trainer

Told = Callable[[int, int], None]
Calls = Mapping[str, Callable[..., Any]]
_VARIABLES = {"tr_loss", "epochs_trained", "steps_trained_in_current_epoch"}  # of the one method


class LoopOfMethods:
    """Of transformers 5: the place at which the loop begins is what a method returns, the sum is an attribute."""

    methods = ("_init_training_state",)
    methods_of_engine = ("_prepare_for_training",)
    numbers = ("_initial_num_input_tokens_seen", "_tr_loss")

    @contextmanager
    def begins_at(self, trainer: Any, place: tuple[int, int] | None, told: Told) -> Iterator[None]:
        """See inside.begins_at."""
        find = trainer._init_training_state

        def begin(*args: Any, **kwargs: Any) -> tuple[int, int]:
            as_before(trainer, begun)
            found = find(*args, **kwargs)
            number, had = found if place is None else place
            had = 0 if trainer.args.ignore_data_skip else had
            told(number, had)
            return number, had

        begun = {"_init_training_state": begin}
        with instead(trainer, begun):
            yield

    @contextmanager
    def engine_loads_nothing(self, trainer: Any) -> Iterator[None]:
        """DeepSpeed's engine is built, and loads no checkpoint."""
        build = trainer._prepare_for_training
        with instead(trainer, {"_prepare_for_training": lambda steps, loader, place: build(steps, loader, None)}):
            yield

    def loss_sum(self, trainer: Any) -> Any:
        """See inside.loss_sum."""
        return trainer._tr_loss


class LoopInOne:
    """Of transformers 4: place and sum are variables of one method, which finds its place by the number of steps."""

    methods = ("set_initial_training_values", "_load_callback_state", "_inner_training_loop")
    methods_of_engine = ()
    numbers = ()

    @contextmanager
    def begins_at(self, trainer: Any, place: tuple[int, int] | None, told: Told) -> Iterator[None]:
        """See inside.begins_at. The number of steps is the true one again once the state is restored."""
        plan, load = trainer.set_initial_training_values, trainer._load_callback_state
        steps_in_pass = 0

        def planned(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps_in_pass
            values = plan(*args, **kwargs)
            steps_in_pass = values[1]
            return values

        def loaded(*args: Any, **kwargs: Any) -> None:
            as_before(trainer, begun)
            load(*args, **kwargs)
            state, at_once = trainer.state, trainer.args.gradient_accumulation_steps
            if place is not None:
                state.global_step = place[0] * steps_in_pass + place[1] // at_once
            number, steps = divmod(state.global_step, steps_in_pass)
            told(number, 0 if trainer.args.ignore_data_skip else steps * at_once)

        begun = {"set_initial_training_values": planned, "_load_callback_state": loaded}
        with instead(trainer, begun):
            yield

    @contextmanager
    def engine_loads_nothing(self, trainer: Any) -> Iterator[None]:
        """DeepSpeed's engine is built, and loads no checkpoint."""
        load = transformers.trainer.deepspeed_load_checkpoint
        transformers.trainer.deepspeed_load_checkpoint = lambda *args, **kwargs: None
        try:
            yield
        finally:
            transformers.trainer.deepspeed_load_checkpoint = load

    def loss_sum(self, trainer: Any) -> Any:
        """See inside.loss_sum. Called by a callback: the loop has called that."""
        frame = sys._getframe(1)
        while frame.f_code.co_name != "_inner_training_loop" or frame.f_locals.get("self") is not trainer:
            assert frame.f_back is not None, "the Trainer is not in its loop"
            frame = frame.f_back
        return frame.f_locals["tr_loss"]


Loop = LoopOfMethods | LoopInOne


def loop_of(trainer: Any) -> Loop:
    """Of which kind it is."""
    code = getattr(type(trainer)._inner_training_loop, "__code__", None)
    return LoopInOne() if code is not None and {*code.co_varnames} >= _VARIABLES else LoopOfMethods()


@contextmanager
def instead(trainer: Any, calls: Calls) -> Iterator[None]:
    """Methods of this Trainer, replaced for a time."""
    vars(trainer).update(calls)
    try:
        yield
    finally:
        as_before(trainer, calls)


def as_before(trainer: Any, calls: Calls) -> None:
    """They are those of its class again."""
    for name in calls:
        vars(trainer).pop(name, None)
