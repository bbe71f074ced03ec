"""EasyCkpt's three calls in the order in which Megatron-LM makes them."""

from __future__ import annotations

import sys
from typing import Any

import ftlaunch_hooks as ft
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.adapters.easyckpt.asked import answer, begin_log, check_positive
from ftlaunch_hooks.adapters.easyckpt.megatron import inside
from ftlaunch_hooks.adapters.easyckpt.megatron.training import NAME, MegatronTraining
from ftlaunch_hooks.adapters.refusal import check_first, refuse
from ftlaunch_hooks.adapters.tried_versions import say_if_newer

_NOT_LOADED = (
    "cannot {what}: load_checkpoint() was not called before, and it is what attaches; Megatron-LM calls it where --load"
    " is given, and the directory need not hold a checkpoint"
)
_training: MegatronTraining | None = None


def load_checkpoint(
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    load_arg: str = "load",
    strict: bool = True,
    concat: bool = False,
    **more: Any,
) -> Any:
    """Go on where the job is, or begin it with Megatron-LM's own checkpoint; returns what Megatron-LM's returns.

    That is the iteration, and in releases that count them the number of floating point operations so far. load_arg,
    strict, more: for Megatron-LM's own load_checkpoint(). concat: where another number of ranks has saved the shards of
    a distributed optimizer, merge them, and cut them anew; as many ranks as have saved need none merged. Call it once,
    on every rank. Raises AttachError for what cannot be kept, and what ft.attach() raises.
    """
    global _training  # noqa: PLW0603 - one process is one rank
    training = MegatronTraining(model, optimizer, opt_param_scheduler)
    point, stands_for = ft.peek(NAME), None
    if point is not None:
        training.check_layout(point[1])
        stands_for = training.merge_shards(point[1], concat=concat)
    else:
        own = inside.load_own(model, optimizer, opt_param_scheduler, load_arg, strict, more)
        training.iteration, training.operations = own
    check_first("load_checkpoint()")
    say_if_newer()
    training.job = ft.attach(**training.objects(), replicated=training.replicated(), stands_for=stands_for)
    _training = training
    if point is not None and (directory := getattr(inside.arguments(), load_arg, None)):
        training.tell(
            f"--{load_arg} {directory} is not read: the job goes on from its own iteration {training.iteration}"
        )
    return inside.as_returned(training.iteration, training.operations)


def initialize_easyckpt(
    save_mem_interval: int, save_storage_interval: int, max_ckpt_num: int, log_file_path: str | None = None
) -> None:
    """Begin the loop: call it right before `while iteration < args.train_iters`, behind load_checkpoint().

    State is saved at these iterations, except where the job was given an option for it. A line says what is done with
    each argument. Raises AttachError for one that is no positive number, and where load_checkpoint() was not called.
    """
    asked = {
        "save_mem_interval": save_mem_interval,
        "save_storage_interval": save_storage_interval,
        "max_ckpt_num": max_ckpt_num,
    }
    check_positive(**asked)
    training = _attached("initialize")
    request = SavingRequest(
        memory_steps=save_mem_interval,
        steps=save_storage_interval,
        ahead=training.iteration - training.job.step,
        keep=max_ckpt_num,
    )
    given = training.job.ask_saves(request)
    training.tell(answer(asked, given, log_file_path))
    begin_log(log_file_path, first=inside.rank() == 0)
    training.begin_loop()


def save_checkpoint_if_needed(iteration: int, model: Any, optimizer: Any, opt_param_scheduler: Any) -> None:
    """Say that `iteration` iterations are complete: what is due is saved.

    Told to stop, it raises SystemExit with code 75 at the agreed iteration. Raises AttachError where load_checkpoint()
    was not called, or the call is not at the end of an iteration.
    """
    training = _attached("save")
    operations = inside.operations_in(sys._getframe(1).f_locals)
    training.complete(iteration, operations, (model, optimizer, opt_param_scheduler))
    if iteration >= getattr(inside.arguments(), "train_iters", iteration + 1):
        training.job.finish()


def _attached(what: str) -> MegatronTraining:
    if _training is None:
        refuse(_NOT_LOADED.format(what=what))
    return _training
