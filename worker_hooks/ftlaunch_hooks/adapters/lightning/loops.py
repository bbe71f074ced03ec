"""Follow fit() through its loops: call back between two batches, and bring fit() back to such a boundary.

A boundary lies before the fetch of a batch, where validation, logging and the end of the epoch before are over and no
random number of the next step has been drawn. Only this module touches what is private in Lightning's loops; `check`
refuses a version that lacks it. Fit is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Generator

from ftlaunch_hooks.adapters.refusal import check_members, refuse
from ftlaunch_hooks.passes.draws import PERSISTENT, Draws
from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.passes.newest_batch import NewestFetch
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

_KNOWN = "Lightning 2.6"
_OF_FIT = "run setup_data on_run_start on_run_end state_dict load_state_dict epoch_loop epoch_progress"
_OF_FIT_HELD = "_restarting _resuming_from_checkpoint _loaded_from_state_dict is_resuming _combined_loader"
_OF_EPOCH = "advance on_run_start restarting global_step batch_progress _batches_that_stepped val_loop"
_UNEQUAL = (
    "this Trainer has several loaders of unequal length, and the shorter ones begin again within an epoch: after a"
    " resume they begin in another order where they shuffle with the global generator, and the run is not exact"
)
_RELOADED = (
    "train_dataloader() is called anew after a resume, as reload_dataloaders_every_n_epochs asks for: where what it"
    " gives depends on more than the number of the epoch, the run is not exact"
)
_AHEAD = (
    "a loader of unknown length reads one batch ahead, and draws random numbers as it reads: those of the batch that"
    " was read ahead are drawn again after a resume, and the run is not exact"
)


def check(trainer: Any) -> None:
    """Raise AttachError where this version's loops lack a private part that is used."""
    check_members(trainer, "fit_loop should_stop accumulate_grad_batches callbacks loggers strategy", _KNOWN)
    check_members(trainer.fit_loop, f"{_OF_FIT} {_OF_FIT_HELD}", _KNOWN)
    check_members(trainer.fit_loop.epoch_loop, _OF_EPOCH, _KNOWN)


class Loops:
    """The loops of one fit(), three methods of which are replaced until `close`."""

    def __init__(
        self,
        trainer: Any,
        crossed: Callable[[], None],
        restored: Callable[[], None],
    ) -> None:
        """Replace the methods.

        Args:
            trainer: the Trainer, whose loops have not begun.
            crossed: called at each boundary.
            restored: called once after a resume, when the loops are where they were.
        """
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._crossed = crossed
        self._restored = restored
        self._made_at: random_numbers.State | None = None  # the generators before the epoch's iterator was made
        self._held_at: dict[str, Any] = {}  # the generators that data sets and collators held as the epoch began
        self._newest = NewestFetch()
        self._began = 0  # batches of the epoch before its iterator was made, which a ckpt_path= had skipped
        self._saved: dict[str, Any] | None = None
        self.ended = False
        """whether the last boundary is crossed; what fit() does after its loops is still to come"""
        self._original_advance = self._epoch.advance
        self._original_run_start = self._epoch.on_run_start
        self._original_run_end = self._fit.on_run_end
        self._epoch.advance = self._advance
        self._epoch.on_run_start = self._epoch_starts
        self._fit.on_run_end = self._run_ends

    def close(self) -> None:
        """Give the loops their own methods back."""
        for name in ("advance", "on_run_start", "on_run_end"):
            vars(self._epoch).pop(name, None)
            vars(self._fit).pop(name, None)

    @property
    def optimizer_steps(self) -> int:
        """Number of steps of all optimizers so far."""
        return int(self._epoch.global_step)

    @property
    def loaders(self) -> list[Any]:
        """The loaders of training; empty until Lightning has set them up."""
        combined = self._fit._combined_loader
        return [] if combined is None else list(combined.flattened)

    def state(self) -> dict[str, Any]:
        """Return the place of fit() at a boundary."""
        place = {"made_at": self._made_at, "began": self._began, "ended": self.ended}
        held = {"held_at": self._held_at, "newest": self._newest.state()}
        return {"progress": self._fit.state_dict(), **place, **held}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """Have fit() go to the boundary at which `state` returned `saved`. Call this before the loops begin."""
        self._saved = saved
        self._made_at = saved["made_at"]
        self._began = saved["began"]
        self.ended = saved["ended"]
        self._held_at = saved["held_at"]
        self._fit.load_state_dict(saved["progress"])
        self._epoch.restarting = False  # Lightning's own restart begins at other places than boundaries
        if self.ended:
            self._fit.run = self._run_only_the_end

    # --- the fit ------------------------------------------------------------------------------------------------

    def _advance(self, fetcher: Any) -> None:
        """Cross the boundary before a batch (epoch_loop.advance)."""
        self._crossed()
        self._original_advance(fetcher)

    def _run_ends(self) -> None:
        """Cross the last boundary, as the loops end (fit_loop.on_run_end)."""
        self.ended = True
        self._crossed()
        self._original_run_end()

    def _run_only_the_end(self) -> None:
        """Do what fit() does after its loops, in which it was killed; Lightning by itself would do nothing."""
        del self._fit.run
        self._fit.setup_data()
        self._fit.on_run_start()
        self._end_restart()
        self._fit.on_run_end()

    def _epoch_starts(self, fetcher: Any) -> None:
        """Begin the loop over an epoch's batches (epoch_loop.on_run_start), or bring it to the saved batch.

        The hooks of on_train_epoch_start have run, and no batch was fetched yet. Raises AttachError.
        """
        _refuse_iterators(fetcher)
        if self._saved is None:
            self._note_iterator(fetcher)
            self._original_run_start(fetcher)
            fetcher.iterator = self._newest.of(fetcher.iterator)
            self._began = int(self._epoch.batch_progress.current.ready)
            return
        fetched = self._go_to_batch(fetcher, self._saved)
        self._original_run_start(fetcher)  # makes no iterator while fit() is resuming
        fetcher.fetched = fetched
        self._end_restart()

    def _note_iterator(self, fetcher: Any) -> None:
        """Read the generators before the epoch's iterator is made; that of the first epoch exists already."""
        makes = self._fit.epoch_progress.current.processed > 0 and not self._fit.is_resuming
        self._made_at = random_numbers.read(_generators(fetcher.combined_loader)) if makes else None
        self._held_at = HeldGenerators(*fetcher.combined_loader.flattened).states()

    def _go_to_batch(self, fetcher: Any, saved: dict[str, Any]) -> int:
        """Make the epoch's iterator from the same random numbers, and drop the batches before the saved place.

        Returns:
            The number of batches that were fetched in this epoch.

        Raises:
            AttachError: some loaders have a state of their own, and others have none.
        """
        loader = fetcher.combined_loader
        stateful = [hasattr(inner, "load_state_dict") and hasattr(inner, "state_dict") for inner in loader.flattened]
        had = int(saved["progress"]["epoch_loop.batch_progress"]["current"]["completed"]) - self._began
        if any(stateful):
            if not all(stateful):
                refuse("cannot resume: some loaders of this Trainer have a state_dict() and others have none")
            return int(fetcher.fetched) + self._began + had
        if self._made_at is not None:
            random_numbers.put_back(self._made_at, _generators(loader))
        HeldGenerators(*loader.flattened).put_back(self._held_at)
        if self._made_at is not None:
            iter(fetcher)
        fetcher.iterator = self._newest.of(fetcher.iterator)
        self._warn_of_loaders(loader, had)
        for batch in range(had):
            before = random_numbers.read_raw() if batch == had - 1 and fetcher.length is None else None
            if batch < had - 1:
                next(fetcher)
            else:
                self._newest.refetch(lambda: next(fetcher), saved["newest"])
            if before is not None and not random_numbers.are_alike(before, random_numbers.read_raw()):
                say(_AHEAD)
        return int(fetcher.fetched) + self._began

    def _warn_of_loaders(self, loader: Any, had: int) -> None:
        """Warn of loaders that cannot be brought back exactly."""
        if len(loader.flattened) > 1 and had >= min(loader.limits):
            say(_UNEQUAL)
        if self._made_at is not None and any(getattr(inner, "persistent_workers", False) for inner in loader.flattened):
            say(PERSISTENT)
        if self._made_at is not None and self._fit.trainer.reload_dataloaders_every_n_epochs:
            say(_RELOADED)

    def _end_restart(self) -> None:
        """Restore the loops' progress and end Lightning's restart, as the loops are at the boundary."""
        assert self._saved is not None
        self._fit.load_state_dict(self._saved["progress"])
        for flag in ("_restarting", "_resuming_from_checkpoint", "_loaded_from_state_dict"):
            setattr(self._fit, flag, False)
        self._epoch.restarting = False
        self._saved = None
        self._restored()


def _generators(combined_loader: Any) -> list[Generator]:
    """Return the generators that were given to loaders and samplers, each once."""
    found = (generator for loader in combined_loader.flattened for generator in Draws(loader).generators())
    return list({id(generator): generator for generator in found}.values())


def _refuse_iterators(fetcher: Any) -> None:
    """Raise AttachError for a training_step that fetches its batches itself."""
    if "DataLoaderIter" in type(fetcher).__name__:
        refuse(
            "cannot attach: training_step(dataloader_iter) fetches its batches itself, and nobody knows how many it has"
            " had; take `batch` instead"
        )
