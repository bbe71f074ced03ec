"""The public face of the hooks: attach()."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.job.restore import AttachError
from ftlaunch_hooks.job.supervised import Supervised
from ftlaunch_hooks.observe import optimizer_steps
from ftlaunch_hooks.process import bootstrap, error_file
from ftlaunch_hooks.standalone import standalone
from ftlaunch_hooks.state import generators
from ftlaunch_hooks.tensors.json_codec import StateError

_job: Job | None = None


def attach(*, frozen: Collection[str] = (), **objects: Any) -> Job:
    """Take part in the job: restore `objects` where an earlier attempt left them, and keep them safe.

    objects: under any name, anything with state_dict() and load_state_dict(): models (DDP-wrapped too), optimizers,
    schedulers, scalers, samplers; and random number generators. Generators among the caller's variables are saved
    without being given. frozen: names of objects that are never saved nor restored.
    Call it once, after everything is built. Raises StateError naming the argument that cannot be saved
    or does not fit what is restored, and AttachError.
    """
    global _job  # noqa: PLW0603 - one process is one rank
    error_file.count_as_final(AttachError, StateError)
    if bootstrap.is_forked():
        raise AttachError(
            "cannot attach: a rank has forked this process; the rank itself attaches, its children do not"
        )
    if _job is not None:
        raise AttachError("cannot attach: attach() was called before in this process; keep the Job it returned")
    unknown = sorted(set(frozen) - set(objects))
    if unknown:
        raise AttachError(f"cannot attach: frozen names {unknown[0]!r}, which is none of {sorted(objects)}")
    page = bootstrap.own_page()
    optimizer_steps.stop()
    coordinator: Coordinator = Supervised(page) if page is not None else standalone.join()
    _job = Job(objects, frozen, coordinator, generators.find(_caller(), objects))
    return _job


def _caller() -> FrameType:
    """The frame of the script that attaches: adapters of frameworks may be between."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("ftlaunch_hooks."):
        frame = frame.f_back
    return frame
