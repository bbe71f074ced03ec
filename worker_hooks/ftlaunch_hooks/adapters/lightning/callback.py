"""The callback by which Lightning tells of a fit(): it makes a Fit as training begins, and ends it with fit()."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ftlaunch_hooks.adapters.lightning import saved
from ftlaunch_hooks.adapters.lightning.fit import Fit
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.process.say import say

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Lightning enters its profiler for each of these methods of a callback in every batch, which costs 20 us a step. A
# method that is None is skipped.
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
_kept: Fit | None = None  # the fit() that was kept last in this process


def Callback(*, training: str = "", automatic: bool = False) -> Any:  # noqa: N802 - to a script it is a class
    """Make a callback for `Trainer(callbacks=[...])`.

    Args:
        training: a word that names the next fit(), by which a job that resumes tells several trainings of one script
            apart. Set `callback.training` for another fit().
        automatic: whether the script does not know of the callback. The user is then told what is attached.

    Raises:
        AttachError: Lightning is not installed.
    """
    bases = tuple(importlib.import_module(f"{name}.callbacks").Callback for name in _packages())
    names = {**dict.fromkeys(_UNUSED), "automatic": automatic, "training": training}
    return type("FtlaunchCallback", (_Hooks, *bases), names)()


def _packages() -> list[str]:
    """Return Lightning's packages, which has two names: those that are imported, or else the first one installed."""
    if imported := [name for name in _PACKAGES if name in sys.modules]:
        return imported
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return [name]
    refuse("cannot make a Callback: neither `lightning` nor `pytorch_lightning` is installed")


class _Hooks:
    """The methods that Lightning calls."""

    automatic = False
    training = ""
    _fit: Fit | None = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Check the Trainer before any callback's on_fit_start, because some make steps there. Raises AttachError."""
        if stage == "fit":
            saved.check(trainer)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Attach: optimizers exist now, and the loops have not begun. Raises AttachError."""
        global _kept  # noqa: PLW0603 - one process is one rank, and one fit at a time is kept in it
        if _kept is None or _kept.is_complete:
            word = self.training
            self.training = ""
            _kept = self._fit = Fit(trainer, word)
            if self.automatic and trainer.is_global_zero:
                say(f"attached to the fit() of this script: {', '.join(_kept.names)}")
        elif _kept.over and trainer.is_global_zero:
            say(_LEFT)

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Put the hooks' handler of SIGTERM back: Lightning has just installed its own."""
        if self._fit is not None:
            self._fit.restore_signal_handler()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Put the hooks' handler of SIGTERM back, for a fit() without a sanity check."""
        if self._fit is not None:
            self._fit.restore_signal_handler()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begin the phase of an evaluation, to which other time limits apply than to a step."""
        if self._fit is not None:
            self._fit.evaluates(True)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """End the phase of an evaluation."""
        if self._fit is not None:
            self._fit.evaluates(False)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """End the fit() that is kept; a script that continues after the exception is not kept."""
        self.on_fit_end(trainer, module)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """End the fit() that is kept."""
        if self._fit is not None:
            self._fit.end()
            self._fit = None
