"""Turn the arguments of ExceptionCheckpoint into settings, and find out who coordinates this rank.

A rank is coordinated by the supervisor that started it (or msrun), or without one by the ranks themselves (Standalone).
ExceptionCheckpoint calls everything here on the main thread, before training begins.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import communication, ops
from mindspore.train import CheckpointConfig

from ftlaunch_contract.node_ranks import one_node
from ftlaunch_contract.saving_request import SavingRequest, read_given
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.supervised import Supervised
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import settings
from ftlaunch_hooks.standalone.standalone import Standalone
from ftlaunch_mindspore.refusal import TrainingRefused

_WORDS = {"storage_interval": "the interval", "keep": "keep_checkpoint_max"}
"""setting of a job -> what MindSpore's CheckpointConfig calls that setting"""


@dataclass(frozen=True)
class CheckpointSettings:
    """The arguments of an ExceptionCheckpoint. None leaves a setting to the environment, or to the supervisor."""

    prefix: str | None
    """how the names of checkpoint files begin"""
    directory: Path | None
    """absolute path of the directory of checkpoints"""
    every_steps: int | None
    """number of steps between two checkpoints"""
    every_seconds: float | None
    """time between two checkpoints, in seconds"""
    keep: int | None
    """number of checkpoints that are kept"""
    append_info: dict[str, Any]
    """values that the script adds to each checkpoint, by name"""

    @property
    def request(self) -> SavingRequest:
        """The settings that whoever saves has to know. Steps come before seconds, as in MindSpore."""
        seconds = None if self.every_steps else self.every_seconds
        return SavingRequest(steps=self.every_steps, seconds=seconds, keep=self.keep)


def read(prefix: str | None, directory: str | None, config: CheckpointConfig | None) -> CheckpointSettings:
    """Check the arguments of an ExceptionCheckpoint.

    Raises:
        TrainingRefused: an argument is of the wrong type, or asks for something that cannot be done.
    """
    if prefix is not None and (not isinstance(prefix, str) or "/" in prefix or not prefix):
        raise TrainingRefused(f"cannot use prefix={prefix!r}: it must be a text without a slash")
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise TrainingRefused(f"cannot use directory={directory!r}: it must be a path")
    path = Path(directory).absolute() if directory is not None else None
    if config is None:
        return CheckpointSettings(
            prefix=prefix, directory=path, every_steps=None, every_seconds=None, keep=None, append_info={}
        )
    if not isinstance(config, CheckpointConfig):
        raise TrainingRefused(f"cannot use config={config!r}: it must be a mindspore.train.CheckpointConfig")
    _check(config)
    return CheckpointSettings(
        prefix=prefix,
        directory=path,
        every_steps=config.save_checkpoint_steps or None,
        every_seconds=config.save_checkpoint_seconds or None,
        keep=config.keep_checkpoint_max,
        append_info=_append_info(config),
    )


def ask(given: CheckpointSettings, coordinator: Coordinator) -> SavingRequest:
    """Return the settings that are asked of whoever saves.

    A setting that the user gave to the job holds against the script's. Rank 0 reports such settings in the first
    attempt.
    """
    request, contradicted = given.request.against(read_given(os.environ))
    if coordinator.rank == 0 and coordinator.attempt == 0:
        for name, option in contradicted.items():
            say(f"{_WORDS[name]} of the CheckpointConfig is not used, as the job was given {option}, which holds")
    return request


def exchange(given: CheckpointSettings | None) -> list[CheckpointSettings | None]:
    """Exchange the settings of all ranks. This is a collective: every rank that trains calls it at the same place.

    Args:
        given: the settings of this rank's ExceptionCheckpoint, None without one.

    Returns:
        The settings of each rank, by rank. A rank that trains alone gets only its own.
    """
    if ms.get_auto_parallel_context("parallel_mode") == "stand_alone" or communication.get_group_size() == 1:
        return [given]
    text = _to_json(given).encode()
    sizes = _gather(np.array([len(text)], np.int32))
    padded = np.frombuffer(text.ljust(int(sizes.max())), np.uint8)
    return [_from_json(row.astype(np.uint8).tobytes()) for row in _gather(padded.astype(np.int32))]


def _to_json(given: CheckpointSettings | None) -> str:
    if given is None:
        return json.dumps(None)
    directory = None if given.directory is None else str(given.directory)
    return json.dumps(dataclasses.asdict(given) | {"directory": directory})


def _from_json(text: bytes) -> CheckpointSettings | None:
    fields = json.loads(text)
    if fields is None:
        return None
    directory = fields["directory"] and Path(fields["directory"])
    return CheckpointSettings(**fields | {"directory": directory})


def _gather(row: Any) -> Any:
    """Return the rows of all ranks, as an array of shape (ranks, len(row)). This is a collective."""
    return ops.AllGather()(ms.Tensor(row)).asnumpy().reshape(-1, len(row))


def _check(config: CheckpointConfig) -> None:
    """Raise TrainingRefused for settings that would otherwise be ignored without a word."""
    if not config.exception_save:
        raise TrainingRefused(
            "cannot save when told to stop: the config says exception_save=False; give CheckpointConfig("
            "exception_save=True), or leave ExceptionCheckpoint out"
        )
    if config.enc_key is not None:
        raise TrainingRefused("cannot encrypt checkpoints: leave out enc_key, or encrypt the directory")
    if not config.keep_checkpoint_max:
        raise TrainingRefused(
            "cannot keep one checkpoint every so many minutes: say with keep_checkpoint_max how many are to be kept"
        )


def _append_info(config: CheckpointConfig) -> dict[str, Any]:
    """Return the values that the config adds to each checkpoint. Raises TrainingRefused for types that JSON lacks."""
    found = dict(config.append_dict or {})
    for name, value in found.items():
        if not isinstance(value, (int, float, bool, str)):
            raise TrainingRefused(
                f"cannot save append_info {name!r}: it is a {type(value).__name__}; int, float, bool and str can be"
            )
    return found


def join(given: CheckpointSettings) -> Coordinator:
    """Find out who coordinates this rank: the supervisor (or msrun's), or the ranks themselves.

    Raises:
        TrainingRefused: this process is not a rank that can be kept.
        settings.AloneError: the environment's settings for ranks without a supervisor are not usable.
    """
    if bootstrap.is_forked():
        raise TrainingRefused("cannot keep this training: a rank has forked this process; the rank itself trains")
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size:
        raise TrainingRefused(
            f"cannot keep this training: its {world_size} ranks are on several machines, and those of MindSpore's are"
            " kept on one; start all of them there, by --nproc-per-node"
        )
    if "MS_ROLE" in os.environ and "RANK" not in os.environ:
        raise TrainingRefused(
            "cannot keep this training: msrun has not numbered its processes; start all of them on one machine"
        )
    if (page := bootstrap.own_page() or bootstrap.acquire_page_for_launcher()) is not None:
        supervised = Supervised(page, park=lambda: None)
        if supervised.attempt == 0 and given.directory not in (None, supervised.checkpoint_dir.absolute()):
            say(
                f"checkpoints go to {supervised.checkpoint_dir}, as the supervisor says, and not to directory="
                f"{given.directory}; --checkpoint-dir {given.directory} has them go there"
            )
        return supervised
    return Standalone(rank, one_node(world_size), _alone(given))


def _alone(given: CheckpointSettings) -> settings.Settings:
    """Return the settings of ranks without a supervisor: the script's, and the environment's for the others."""
    chosen = settings.settings()
    return dataclasses.replace(
        chosen,
        checkpoint_dir=given.directory or chosen.checkpoint_dir,
        prefix=given.prefix or chosen.prefix,
    )
