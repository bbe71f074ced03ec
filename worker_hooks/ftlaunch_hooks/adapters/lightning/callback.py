"""The callback: attaches what a Trainer trains, and makes the boundaries of its steps known."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ftlaunch_hooks.adapters.lightning import saved
from ftlaunch_hooks.adapters.lightning.fit import Fit
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.process.say import say

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Lightning enters its profiler for each of these in every batch, where a callback has them: 20 us a step. It passes
# over what cannot be called.
_UNUSED = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
_LEFT = (
    "the fit() before this one has not come to its end: of this one nothing is saved, and after a restart the one"
    " before goes on from where it was left"
)
_kept: Fit | None = None


def Callback(*, training: str = "", automatic: bool = False) -> Any:  # noqa: N802 - to a script it is a class
    """A callback for `Trainer(callbacks=[...])`. Raises AttachError where Lightning is not installed.

    training: a word for the next fit(), by which a job that resumes tells several trainings of one script apart; for
    another fit() set `callback.training`. automatic: the script does not know of it, and is told what is attached.
    """
    bases = tuple(importlib.import_module(f"{name}.callbacks").Callback for name in _packages())
    names = {**dict.fromkeys(_UNUSED), "automatic": automatic, "training": training}
    return type("FtlaunchCallback", (_Hooks, *bases), names)()


def _packages() -> list[str]:
    """Of both names of Lightning those that the script has imported, or else the first that is there."""
    if imported := [name for name in _PACKAGES if name in sys.modules]:
        return imported
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return [name]
    refuse("cannot make a Callback: neither `lightning` nor `pytorch_lightning` is installed")


class _Hooks:
    """What Lightning calls."""

    automatic, training = False, ""
    _fit: Fit | None = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Before any callback's on_fit_start: some make steps there."""
        if stage == "fit":
            saved.check(trainer)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Optimizers exist, and the loops have not begun."""
        global _kept  # noqa: PLW0603 - one process is one rank, and one fit at a time is kept in it
        if _kept is None or _kept.is_complete:
            word, self.training = self.training, ""
            _kept = self._fit = Fit(trainer, word)
            if self.automatic and trainer.is_global_zero:
                say(f"attached to the fit() of this script: {', '.join(_kept.names)}")
        elif _kept.over and trainer.is_global_zero:
            say(_LEFT)

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Lightning has put its handlers in place."""
        if self._fit is not None:
            self._fit.take_signal_back()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Likewise, where nothing is checked before."""
        if self._fit is not None:
            self._fit.take_signal_back()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Limits of an evaluation hold, not those of a step."""
        if self._fit is not None:
            self._fit.evaluates(True)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Training goes on."""
        if self._fit is not None:
            self._fit.evaluates(False)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """A script that goes on after that is on its own."""
        self.on_fit_end(trainer, module)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """What comes later in this process is not kept."""
        if self._fit is not None:
            self._fit.end()
            self._fit = None
