"""Hooks that run inside each rank of a training job: beat, snapshot, stop where told, resume.

    import ftlaunch_hooks as ft

    job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in job.steps(10_000):
        ...

The API is what this module exports, and its adapters for frameworks (`ft.transformers`); every other name in the
package is internal and may change in any release. Importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ftlaunch_hooks.process import bootstrap

if TYPE_CHECKING:
    from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler
    from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler
    from ftlaunch_hooks.job.attaching import attach, peek, resuming
    from ftlaunch_hooks.job.job import Job
    from ftlaunch_hooks.storage.dcp_reader import CheckpointStorageReader
    from ftlaunch_hooks.storage.dcp_writer import CheckpointStorageWriter

__all__ = [
    "CheckpointStorageReader",
    "CheckpointStorageWriter",
    "Job",
    "ResumableBatchSampler",
    "ResumableMixSampler",
    "attach",
    "peek",
    "resuming",
]

_HOMES = {
    "Job": "job.job",
    "attach": "job.attaching",
    "peek": "job.attaching",
    "resuming": "job.attaching",
    "ResumableBatchSampler": "data.batch_sampler",
    "ResumableMixSampler": "data.mix_sampler",
    "CheckpointStorageReader": "storage.dcp_reader",
    "CheckpointStorageWriter": "storage.dcp_writer",
}

_ADAPTERS = ("accelerate", "chatlearn", "deepspeed", "lightning", "torchtitan", "transformers")  # modules of adapters/


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _ADAPTERS:
            return importlib.import_module(f"{__name__}.adapters.{name}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            how = "install the build that you train with, or `pip install 'ftlaunch[torch]'`"
            raise ImportError(f"cannot use ftlaunch_hooks.{name}: {sys.executable} has no torch; {how}") from None
        if error.name == "numpy":
            how = "`pip install numpy` (torch comes without it, and the hooks need it)"
            raise ImportError(f"cannot use ftlaunch_hooks.{name}: {sys.executable} has no numpy; {how}") from None
        raise


if not bootstrap.torch_is_being_imported():
    bootstrap.install()
