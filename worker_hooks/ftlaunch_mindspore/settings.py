"""Whom a rank of MindSpore's answers to: the supervisor, or itself, by what ExceptionCheckpoint was given."""

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
"""what a setting of a job is called in a config"""


@dataclass(frozen=True)
class CheckpointSettings:
    """What an ExceptionCheckpoint was given; None: the environment says it, or the supervisor."""

    prefix: str | None
    directory: Path | None
    every_steps: int | None
    every_seconds: float | None
    keep: int | None
    append_info: dict[str, Any]

    @property
    def request(self) -> SavingRequest:
        """What of it the ranks ask of whoever saves; where the config has steps and seconds, MindSpore takes steps."""
        seconds = None if self.every_steps else self.every_seconds
        return SavingRequest(steps=self.every_steps, seconds=seconds, keep=self.keep)


def read(prefix: str | None, directory: str | None, config: CheckpointConfig | None) -> CheckpointSettings:
    """Check what the user has given. Raises TrainingRefused."""
    if prefix is not None and (not isinstance(prefix, str) or "/" in prefix or not prefix):
        raise TrainingRefused(f"cannot use prefix={prefix!r}: it must be a text without a slash")
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise TrainingRefused(f"cannot use directory={directory!r}: it must be a path")
    path = Path(directory).absolute() if directory is not None else None
    if config is None:
        return CheckpointSettings(prefix, path, None, None, None, {})
    if not isinstance(config, CheckpointConfig):
        raise TrainingRefused(f"cannot use config={config!r}: it must be a mindspore.train.CheckpointConfig")
    _check(config)
    steps, seconds = config.save_checkpoint_steps or None, config.save_checkpoint_seconds or None
    return CheckpointSettings(prefix, path, steps, seconds, config.keep_checkpoint_max, _append_info(config))


def ask(given: CheckpointSettings, coordinator: Coordinator) -> SavingRequest:
    """Return what is asked of whoever saves; rank 0 says once what is not asked, as the job was given a setting."""
    left, contradicted = given.request.against(read_given(os.environ))
    if coordinator.rank == 0 and coordinator.attempt == 0:
        for name, option in contradicted.items():
            say(f"{_WORDS[name]} of the CheckpointConfig is not used, as the job was given {option}, which holds")
    return left


def exchange(given: CheckpointSettings | None) -> list[CheckpointSettings | None]:
    """Return what the ExceptionCheckpoint of each rank was given, None of a rank that has none.

    Every rank that trains calls it at the same place. given: this rank's. Without ranks that train together it is the
    only one.
    """
    if ms.get_auto_parallel_context("parallel_mode") == "stand_alone" or communication.get_group_size() == 1:
        return [given]
    words = json.dumps(None if given is None else dataclasses.asdict(given) | {"directory": _text(given)}).encode()
    sizes = _gather(np.array([len(words)], np.int32))
    padded = np.frombuffer(words.ljust(int(sizes.max())), np.uint8)
    said = [json.loads(row.astype(np.uint8).tobytes()) for row in _gather(padded.astype(np.int32))]
    return [
        None if one is None else CheckpointSettings(**one | {"directory": one["directory"] and Path(one["directory"])})
        for one in said
    ]


def _text(given: CheckpointSettings) -> str | None:
    return None if given.directory is None else str(given.directory)


def _gather(row: Any) -> Any:
    """Return a row of each rank."""
    return ops.AllGather()(ms.Tensor(row)).asnumpy().reshape(-1, len(row))


def _check(config: CheckpointConfig) -> None:
    """Raises TrainingRefused for what would otherwise be left out without a word."""
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
    found = dict(config.append_dict or {})
    for name, value in found.items():
        if not isinstance(value, (int, float, bool, str)):
            raise TrainingRefused(
                f"cannot save append_info {name!r}: it is a {type(value).__name__}; int, float, bool and str can be"
            )
    return found


def join(given: CheckpointSettings) -> Coordinator:
    """Meet whoever decides for this rank. Raises TrainingRefused and settings.AloneError."""
    if bootstrap.is_forked():
        raise TrainingRefused("cannot keep this training: a rank has forked this process; the rank itself trains")
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size:
        raise TrainingRefused(
            f"cannot keep this training: its {world_size} ranks are on several machines, and those of MindSpore's are"
            " kept on one; start all of them there, by --nproc-per-node"
        )
    if "MS_ROLE" in os.environ and "RANK" not in os.environ:
        raise TrainingRefused(
            "cannot keep this training: msrun has not numbered its processes; start all of them on one machine"
        )
    if (page := bootstrap.own_page() or bootstrap.take_page_for_launcher()) is not None:
        supervised = Supervised(page)
        if supervised.attempt == 0 and given.directory not in (None, supervised.checkpoint_dir.absolute()):
            say(
                f"checkpoints go to {supervised.checkpoint_dir}, as the supervisor says, and not to directory="
                f"{given.directory}; --checkpoint-dir {given.directory} has them go there"
            )
        return supervised
    return Standalone(rank, one_node(world_size), _alone(given))


def _alone(given: CheckpointSettings) -> settings.Settings:
    chosen = settings.settings()
    return dataclasses.replace(
        chosen,
        checkpoint_dir=given.directory or chosen.checkpoint_dir,
        prefix=given.prefix or chosen.prefix,
    )
