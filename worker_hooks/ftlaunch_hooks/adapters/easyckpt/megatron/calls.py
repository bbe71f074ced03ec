"""EasyCkpt's three calls for Megatron-LM's training loop, in the order in which the loop makes them.

All three run on the main thread of every rank. One process keeps one training.
"""

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
    """Resume at the iteration that the job has reached, or begin with Megatron-LM's own checkpoint. Attach everything.

    Call this once, on every rank.

    Args:
        model: Megatron's model, a module or a list of modules.
        optimizer: Megatron's optimizer.
        opt_param_scheduler: Megatron's scheduler, or None.
        load_arg: as in Megatron-LM's own load_checkpoint().
        strict: as in Megatron-LM's own load_checkpoint().
        concat: whether to merge the shards of a distributed optimizer that another number of ranks saved. With the
            same number of ranks nothing is merged.
        more: further arguments of Megatron-LM's own load_checkpoint().

    Returns:
        What Megatron-LM's own load_checkpoint() returns: the iteration, and in releases that count them the number of
        floating point operations so far.

    Raises:
        AttachError: something cannot be kept safe or restored.
    """
    global _training  # noqa: PLW0603 - one process is one rank
    training = MegatronTraining(model, optimizer, opt_param_scheduler)
    point = ft.peek(NAME)
    stands_for = None
    if point is not None:
        training.check_layout(point[1])
        stands_for = training.merge_shards(point[1], concat=concat)
    else:
        training.iteration, training.operations = inside.load_own(
            model=model,
            optimizer=optimizer,
            scheduler=opt_param_scheduler,
            load_arg=load_arg,
            strict=strict,
            more=more,
        )
    check_first("load_checkpoint()")
    say_if_newer()
    training.job = ft.attach(**training.objects(), replicated=training.replicated(), stands_for=stands_for)
    _training = training
    if point is not None and (directory := getattr(inside.arguments(), load_arg, None)):
        training.say_on_first(
            f"--{load_arg} {directory} is not read: the job goes on from its own iteration {training.iteration}"
        )
    return inside.as_returned(training.iteration, training.operations)


def initialize_easyckpt(
    save_mem_interval: int, save_storage_interval: int, max_ckpt_num: int, log_file_path: str | None = None
) -> None:
    """Begin the loop. Call this after load_checkpoint(), right before `while iteration < args.train_iters`.

    An option that the user gave to the job holds against an argument; a line tells the user what is done about each.

    Args:
        save_mem_interval: number of iterations between two snapshots in memory.
        save_storage_interval: number of iterations between two checkpoints on storage.
        max_ckpt_num: number of checkpoints that are kept.
        log_file_path: a file to which saves and deletions are appended, or None.

    Raises:
        AttachError: an argument is no positive number, load_checkpoint() was not called, or the file cannot be written.
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
    training.say_on_first(answer(asked, given, log_file_path))
    begin_log(log_file_path, first=inside.rank() == 0)
    training.begin_loop()


def save_checkpoint_if_needed(iteration: int, model: Any, optimizer: Any, opt_param_scheduler: Any) -> None:
    """Report that `iteration` iterations are complete, and save what is due. Call this at the end of each iteration.

    The other arguments are those of load_checkpoint().

    Raises:
        AttachError: load_checkpoint() was not called, or this is not the end of an iteration.
        SystemExit: the job was told to stop, and this is the iteration on which the ranks agreed (status 75).
    """
    training = _attached("save")
    operations = inside.operations_in(sys._getframe(1).f_locals)
    training.complete(iteration, operations=operations, model=model, optimizer=optimizer, scheduler=opt_param_scheduler)
    if iteration >= getattr(inside.arguments(), "train_iters", iteration + 1):
        training.job.finish()


def _attached(what: str) -> MegatronTraining:
    """Return the training that load_checkpoint() attached. Raises AttachError before that call."""
    if _training is None:
        refuse(_NOT_LOADED.format(what=what))
    return _training
