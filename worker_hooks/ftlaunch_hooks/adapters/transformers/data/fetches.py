"""Fetches a Trainer's batches in its place: knows where in its data it is, and goes back to there.

Batches that are made with random numbers are made again with the same ones:
- in the training process, of a data set with indices: the states before the batch that was read ahead, and before the
  others of the step, are saved and put back;
- in workers, which are seeded as a pass begins, and of a data set without indices: all batches of the pass are made
  again. That is exact unless training draws from a generator of the data's own process between two batches.
Whether the batches are those that the run had here is looked at in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch_hooks.adapters.transformers.data import going_back
from ftlaunch_hooks.adapters.transformers.data.numbers import Numbers, Reading, drawn_from, to_save
from ftlaunch_hooks.adapters.transformers.data.worker_draws import WorkerDraws
from ftlaunch_hooks.passes.batch_sample import same, sample_of
from ftlaunch_hooks.passes.newest_batch import OTHER_BATCHES
from ftlaunch_hooks.process.say import say

_BETWEEN = (
    "random numbers are drawn while batches are read from a data set without indices, and by training in between, from"
    " the same generator: a resumed run reads the batches again without training, draws others, and is not exact; give"
    " the data set a generator of its own, or read it in a worker (dataloader_num_workers)"
)
_OUTLIVING = (
    "random numbers are drawn in workers of the DataLoader that outlive an epoch: a resumed run has new ones, which"
    " draw others, and is not exact; leave out dataloader_persistent_workers"
)
_OTHER_RANKS = (
    "the job has {now} ranks now, and had {before}: they share the data otherwise, so that samples come twice or not at"
    " all, and the run is not exact"
)


class Fetches:
    """Stands in the place of Trainer.get_batch_samples."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        """The training begins. loader: that trains. Raises AttachError for a loader that is not known."""
        going_back.check(loader)
        self._loader, base = loader, going_back.base_of(loader)
        self._trainer, self._fetch, self._speaks = trainer, trainer.get_batch_samples, trainer.is_world_process_zero()
        trainer.get_batch_samples = self.fetch
        self._ranks = trainer.args.world_size
        workers = getattr(base, "num_workers", 0)
        self._workers = WorkerDraws(base) if workers else None
        self._outliving = bool(workers and base.persistent_workers)
        self._all_again = going_back.cannot_skip(loader)
        self._numbers = Numbers(loader)
        if not workers:
            going_back.before_each_fetch(loader, self._reads_ahead)
        self._pass, self._had, self._count = -1, 0, 0
        self._began: dict[str, Any] = {}
        self._saved: Mapping[str, Any] | None = None
        self._restored: Mapping[str, Any] = {}
        self._told = self._draws = False
        self._forget()

    # --- the place ----------------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        """The next pass is the one of which `state` has said this."""
        self._restored = saved
        if saved["ranks"] != self._ranks:
            self._say(_OTHER_RANKS.format(now=self._ranks, before=saved["ranks"]))
            return
        self._saved = saved
        self._draws = saved["draws"]
        if self._workers is not None and saved["drawn_in_workers"]:
            self._workers.set_seen()

    def begin_pass(self, number: int, had: int) -> None:
        """The Trainer begins a pass over its data. had: as many batches of it the Trainer means to pass over."""
        self._forget()
        self._pass, self._count = number, had
        if self._saved is not None and self._saved["pass"] == number:
            self._began = self._saved["began"]
            self._numbers.put_back(self._began)
        else:
            self._began = to_save(self._numbers.read())
        if self._saved is not None and (self._saved["pass"], self._saved["had"]) != (number, had):
            self._saved = None  # the Trainer goes elsewhere: it was told to skip nothing, or to make more steps
        if number > 0 and self._outliving and self._workers is not None and self._workers.seen:
            self._say(_OUTLIVING)

    @property
    def has_begun(self) -> bool:
        """Whether a pass has."""
        return self._pass >= 0

    def state(self) -> Mapping[str, Any]:
        """At a boundary: the batches of the next step are fetched. Before the first pass: what was restored."""
        if self._restored and not self.has_begun:
            return self._restored
        matters = self._draws and not self._all_again
        noted = {name: to_save(one) for name, one in self._noted.items()} if matters else {}
        return {
            "ranks": self._ranks,
            "pass": self._pass,
            "had": self._had,
            "began": self._began,
            "noted": noted,
            "draws": self._draws,
            "drawn_in_workers": self._workers is not None and self._workers.seen,
            "sample": sample_of(self._batches),
        }

    def close(self) -> None:
        """The training is over."""
        self._forget()
        self._trainer.get_batch_samples = self._fetch

    def _forget(self) -> None:
        self._own: Any = None
        self._batches: list[Any] = []
        self._noted: dict[str, Reading] = {}
        self._ahead: Reading | None = None
        self._after: Reading | None = None
        self._between: set[str] = set()
        self._reading = False

    # --- fetching -----------------------------------------------------------------------------------------

    def fetch(self, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """See Trainer.get_batch_samples."""
        saved, self._saved = self._saved, None
        if saved is not None and self._count:
            self._own = iter(self._moved(saved))
        if self._workers is None:
            self._note(self._numbers.read())
            self._reading = self._after is not None  # the first batch of a pass is made before any is read ahead
        found = self._fetch(iterator if self._own is None else self._own, *args, **kwargs)
        self._had, self._batches = self._count, found[0]
        self._count += len(self._batches)
        if saved is not None:
            self._arrive(saved)
        if self._workers is None:
            self._look(self._numbers.read(), made_again=saved is not None)
        return found

    def _note(self, before: Reading) -> None:
        """The batches of a step are fetched: one was read ahead, the others come now."""
        self._noted = {"before": before} if self._ahead is None else {"before": before, "ahead": self._ahead}
        self._ahead = None
        if self._after is not None and self._all_again:
            self._between |= drawn_from(self._after, before)

    def _reads_ahead(self) -> None:
        """A batch is read ahead next. Before the first one of a step nothing was drawn since its reading."""
        if self._reading:
            self._ahead, self._reading = self._noted["before"], False
        else:
            self._ahead = self._numbers.read()

    def _look(self, after: Reading, *, made_again: bool) -> None:
        """Notice what was drawn. The first batch of a pass is always drawn as it was."""
        before = self._ahead if self._after is None else self._noted["before"]
        self._after = after
        if made_again or before is None:
            return
        drawn = drawn_from(before, after)
        if drawn and not self._draws:
            self._draws = bool(drawn - self._unused_orders())
        if self._all_again and drawn & self._between:
            self._say(_BETWEEN)

    def _unused_orders(self) -> set[str]:
        """The generators from which samplers draw as a pass ends: torch's RandomSampler draws an order and uses none
        of it. Going back asks the samplers for the whole pass, so that they draw it again.
        """
        ended = self._trainer.accelerator.gradient_state.end_of_dataloader
        return self._numbers.of_samplers() if ended else set()

    # --- going back ---------------------------------------------------------------------------------------

    def _moved(self, saved: Mapping[str, Any]) -> Any:
        """The loader at the first batch of the step."""
        self._loader.set_epoch(self._pass) if hasattr(self._loader, "set_epoch") else None
        if self._all_again or saved["drawn_in_workers"]:
            return going_back.read_on(self._loader, self._count)
        noted = saved["noted"] if self._workers is None else {}
        order = ["ahead", "before"] if "ahead" in noted else ["before"]

        def arrives(number: int) -> None:
            if number < len(order) and order[number] in noted:
                self._numbers.put_back(noted[order[number]])
            if number == 1 and self._ahead is not None:
                self._reads_ahead()  # again: it was before the numbers were put back

        moved = going_back.skip(self._loader, self._count, arrives)
        if self._workers is None:
            going_back.before_each_fetch(moved, self._reads_ahead)
        return moved

    def _arrive(self, saved: Mapping[str, Any]) -> None:
        going_back.arrived(self._loader)
        if not same(saved["sample"], sample_of(self._batches)):
            say(OTHER_BATCHES)

    def _say(self, sentence: str) -> None:
        if self._speaks and not self._told:
            say(sentence)
        self._told = True
