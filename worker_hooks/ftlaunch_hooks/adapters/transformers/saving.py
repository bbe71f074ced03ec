"""Translate a Trainer's arguments for checkpoints into a request to the job, which then saves at the same steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftlaunch_contract import saving_request
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.process.say import say

_HOLDS = "not used, as the job was given {option}, which holds"


def ask(job: Job, args: Any, state: Any) -> bool:
    """Ask the job to save as the Trainer's arguments say, and tell the user on rank 0.

    Boundaries calls this function on every rank, between attach() and the first step.

    Args:
        job: the job of the training.
        args: the TrainingArguments.
        state: the TrainerState, whose `save_steps` is a number of steps even where the arguments give a ratio.

    Returns:
        Whether job.save() has to be called whenever the Trainer has saved, because no interval describes these steps.
    """
    strategy = _strategy(args)
    if strategy == "no":
        return False
    limit = args.save_total_limit
    every = int(state.save_steps) if strategy == "steps" else 0
    request = SavingRequest(
        steps=every if every > 0 else None,
        ahead=state.global_step - job.step,
        keep=limit if limit is not None and limit > 0 else None,
    )
    job.ask_saves(request)
    given = saving_request.read_given(os.environ)
    if state.is_world_process_zero:
        say(_answer(strategy, request, given))
    return strategy != "steps" and "storage_interval" not in given


def _strategy(args: Any) -> str:
    """Return the argument `save_strategy`, which may be an enum, as text."""
    return str(getattr(args.save_strategy, "value", args.save_strategy))


def _answer(strategy: str, request: SavingRequest, given: Mapping[str, str]) -> str:
    """Return a line that says what is done about each of the Trainer's arguments."""
    parts = []
    if strategy != "steps":
        done = "a checkpoint of the job is asked for at each of the Trainer's, and is one of the next steps"
        parts.append(f"save_strategy={strategy!r}: {_unless(given, 'storage_interval', done)}")
    elif request.steps is not None:
        done = "a checkpoint of the job at each multiple"
        parts.append(f"save_steps={request.steps}: {_unless(given, 'storage_interval', done)}")
    if request.keep is not None:
        done = "as many of the job's are kept"
        parts.append(f"save_total_limit={request.keep}: {_unless(given, 'keep', done)}")
    answers = "; ".join(parts) or "no step is named"
    return f"{answers}; the Trainer writes its own as ever, and training waits for them"


def _unless(given: Mapping[str, str], setting: str, done: str) -> str:
    """Return `done`, or if the user gave the job this setting, that the Trainer's argument is not used."""
    return _HOLDS.format(option=given[setting]) if setting in given else done
