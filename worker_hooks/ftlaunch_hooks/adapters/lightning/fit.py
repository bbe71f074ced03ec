"""Keep one fit() safe: attach its objects, save what Lightning keeps besides, and cross its boundaries.

The callback makes a Fit in on_fit_start. Loops (loops.py) calls it back at each boundary, which lies between two
batches.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.lightning import loops as fit_loops
from ftlaunch_hooks.adapters.lightning import metrics, saved, strategies, swa
from ftlaunch_hooks.adapters.lightning.loggers import Loggers
from ftlaunch_hooks.adapters.refusal import check_ranks, check_saved
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
from ftlaunch_hooks.adapters.words import check_place, word_of
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

_HOW = "ft.lightning.Callback(training=...)"  # the call by which a script names a training
_ENDLESS = 1 << 40  # number of steps that is never reached: Lightning decides when training ends
_CHANGED = (
    "what runs before training (setup(), on_fit_start(), on_train_start(), the sanity check) has changed parameters"
    " after they were restored: this run is not exact; change them in configure_model() or __init__()"
)
_OLDER = "{path}, given as ckpt_path=, is not loaded: training goes on from step {step}, which is newer"


class Fit:
    """One fit(), as an attached object whose state is what Lightning keeps besides weights and optimizers."""

    def __init__(self, trainer: Any, word: str) -> None:
        """Attach everything, and restore what was saved. Call this in on_fit_start.

        Args:
            trainer: the Trainer, whose loops have not begun.
            word: the script's name for this training; empty without one.

        Raises:
            AttachError: this Trainer cannot be kept safe, or its state cannot be restored.
        """
        _check(trainer)
        say_if_newer()
        self.trainer = trainer
        self.over = False
        """whether fit() has returned or raised"""
        self._start = random_numbers.read()
        self._saved: dict[str, Any] | None = None
        self._loops = fit_loops.Loops(trainer, self._cross, self._restored)
        self._loggers = Loggers(trainer)
        self._steps: Generator[int] | None = None
        self._made = 0  # number of optimizer steps at the last boundary
        self._evaluation: AbstractContextManager[None] | None = None
        self.keeps_attributes_of = [*metrics.torchmetrics_of(trainer.lightning_module), *swa.norms_of(trainer)]
        objects = _objects(trainer)
        self.names = list(objects)
        """names of the attached objects"""
        self._job = ft.attach(training=word_of(word, _HOW, speaks=trainer.is_global_zero), **objects, lightning=self)
        self._handler = signal.getsignal(signal.SIGTERM)
        self._changes = 0  # number of changes of parameters when they were restored
        if (restored := self._saved) is not None:
            if restored["loops"]["ended"] and not word:
                check_place(self._job, before=restored["place"], now=_place(trainer), how=_HOW)
            self._go_on(restored)

    # --- what is saved ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state at a boundary. Until the loops have resumed, this is the state that was restored."""
        if self._saved is not None:
            return self._saved
        return {
            "ranks": self.trainer.world_size,
            "start": self._start,
            "loops": self._loops.state(),
            "lightning": saved.state(self.trainer),
            "metrics": metrics.state(self.trainer),
            "loggers": self._loggers.state(),
            "place": _place(self.trainer),
        }

    @property
    def keeps_position_of(self) -> list[Any]:
        """The loaders whose positions this object restores."""
        return self._loops.loaders

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check a saved state, which is restored later: by `_go_on` after attach(), and by `_restored` in the loops.

        Raises:
            AttachError: another version of this adapter or another number of ranks saved the state.
        """
        check_saved(state, "ranks start loops lightning metrics loggers place", "Lightning")
        check_saved(state["loops"], "progress made_at began ended held_at newest", "Lightning")
        check_saved(state["lightning"], "checkpoint beside settings swa", "Lightning")
        check_ranks(state["ranks"], self.trainer.world_size)
        self._saved = state

    def _go_on(self, state: dict[str, Any]) -> None:
        """Restore the state as far as that is possible before the loops begin.

        The generators are put back to where they were when the job was new, so that what Lightning draws before its
        loops is drawn as it was then.
        """
        random_numbers.put_back(state["start"])
        self._start = state["start"]
        step = self._job.step
        self._loggers.restore(state["loggers"], step)
        saved.restore_folders(self.trainer, state["lightning"])
        if step == self._job.began_at:
            self._saved = None
            return
        if (path := self.trainer.ckpt_path) and self.trainer.is_global_zero:
            say(_OLDER.format(path=path, step=step))
        saved.restore(self.trainer, state["lightning"])
        self._loops.go_on_from(state["loops"])
        self._changes = self._count_changes()

    def _restored(self) -> None:
        """Restore the rest, once the loops are where they were, and warn if parameters were changed meanwhile."""
        assert self._saved is not None
        metrics.restore(self.trainer, self._saved["metrics"])
        saved.restore_settings(self.trainer, self._saved["lightning"])
        self._saved = None
        if self._changes != self._count_changes():
            say(_CHANGED)

    def _count_changes(self) -> int:
        """Return how many times parameters were changed in place in this process."""
        return sum(parameter._version for parameter in self.trainer.lightning_module.parameters())

    # --- the boundaries -----------------------------------------------------------------------------------------

    def _cross(self) -> None:
        """Cross a boundary, between two batches or at the end of the loops.

        All optimizer steps since the boundary before count as one step of the job.
        """
        made = self._loops.optimizer_steps
        if self._steps is None:
            self._steps = self._job.steps(_ENDLESS)
            self._made = made
            next(self._steps)
        elif self._made != made:
            self._made = made
            next(self._steps)
        if self._loops.ended:
            self._steps.close()
            self._job.finish()

    def restore_signal_handler(self) -> None:
        """Put the hooks' handler of SIGTERM back: Lightning's would wait for other ranks within the handler."""
        signal.signal(signal.SIGTERM, self._handler)

    def evaluates(self, now: bool) -> None:
        """Begin the phase of an evaluation, or with now=False end it."""
        if now and self._evaluation is None:
            self._evaluation = self._job.phase("eval")
            self._evaluation.__enter__()
        elif not now and self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    @property
    def is_complete(self) -> bool:
        """Whether fit() has come to its end, so that another one may be kept."""
        return self.over and self._loops.ended

    def end(self) -> None:
        """Stop keeping, as fit() returns or raises."""
        self.over = True
        if self._steps is not None:
            self._steps.close()
        self._loops.close()


def _place(trainer: Any) -> str:
    """Return where a training writes to and what it trains, by which another training is recognised."""
    return f"{trainer.default_root_dir} as a {type(trainer.lightning_module).__qualname__}"


def _check(trainer: Any) -> None:
    """Raise AttachError for a Trainer that cannot be kept safe."""
    fit_loops.check(trainer)
    metrics.check(trainer)
    strategies.check(trainer.strategy, trainer.world_size, "Trainer")


def _objects(trainer: Any) -> dict[str, Any]:
    """Return what is attached besides the Fit, by name."""
    objects = {"model": trainer.model}
    named = {
        "optimizer": trainer.optimizers,
        "scheduler": [config.scheduler for config in trainer.lr_scheduler_configs],
        "averaged": saved.averaged_models(trainer),
    }
    for name, targets in named.items():
        objects |= {f"{name}_{number}" if number else name: target for number, target in enumerate(targets)}
    return objects
