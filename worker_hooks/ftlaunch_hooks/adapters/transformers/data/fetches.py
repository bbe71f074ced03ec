"""Fetch a Trainer's batches, in the place of Trainer.get_batch_samples, and resume at the batch of a step.

Batches that depend on random numbers are made again from the same numbers:
- A data set with indices, read in the training process: the states of the generators before the batch that was read
  ahead and before the other batches of the step are saved, and put back.
- Workers, which are seeded at the beginning of a pass, and a data set without indices: all batches of the pass are made
  again. The result is exact unless training draws, between two batches, from a generator of the process that reads.
In any case a sample of the step's batches is compared with those that the run had before.

Accelerate's loaders read one batch ahead: a step's first batch was made before the step before it, and the others after
that step. KeptState owns one Fetches; everything runs on the main thread of a rank.
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
    """The position of a Trainer in its data; replaces the Trainer's method get_batch_samples until it is closed."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        """Begin to fetch, as a training begins.

        Args:
            trainer: the Trainer.
            loader: the loader of its training data, as Accelerate has prepared it.

        Raises:
            AttachError: this version of Accelerate has another kind of loader.
        """
        going_back.check(loader)
        self._loader = loader
        base = going_back.base_of(loader)
        self._trainer = trainer
        self._fetch = trainer.get_batch_samples
        self._speaks = trainer.is_world_process_zero()
        trainer.get_batch_samples = self.fetch
        self._ranks = trainer.args.world_size
        workers = getattr(base, "num_workers", 0)
        self._workers = WorkerDraws(base) if workers else None
        self._outliving = bool(workers and base.persistent_workers)
        self._should_repeat_pass = going_back.cannot_skip(loader)
        self._numbers = Numbers(loader)
        if not workers:
            going_back.before_each_fetch(loader, self._reads_ahead)
        self._pass = -1
        self._had = 0  # batches of the pass before those of the step whose batches were fetched last
        self._count = 0  # batches of the pass with those of that step
        self._began: dict[str, Any] = {}  # the generators as the pass began
        self._saved: Mapping[str, Any] | None = None  # the place at which the next fetch resumes
        self._restored: Mapping[str, Any] = {}
        self._has_warned = False
        self._draws = False  # whether making batches draws random numbers in this process
        self._forget()

    # --- the place ----------------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        """Resume at the place that `state` returned, unless another number of ranks saved it."""
        self._restored = saved
        if saved["ranks"] != self._ranks:
            self._say(_OTHER_RANKS.format(now=self._ranks, before=saved["ranks"]))
            return
        self._saved = saved
        self._draws = saved["draws"]
        if self._workers is not None and saved["drawn_in_workers"]:
            self._workers.set_seen()

    def begin_pass(self, number: int, had: int) -> None:
        """Begin a pass over the data: put the generators where they were when this pass began, if it is resumed.

        Args:
            number: of the pass.
            had: number of batches of the pass that the Trainer skips.
        """
        self._forget()
        self._pass = number
        self._count = had
        if self._saved is not None and self._saved["pass"] == number:
            self._began = self._saved["began"]
            self._numbers.put_back(self._began)
        else:
            self._began = to_save(self._numbers.read())
        if self._saved is not None and (self._saved["pass"], self._saved["had"]) != (number, had):
            self._saved = None  # the Trainer begins elsewhere: it was told to skip nothing, or to make more steps
        if number > 0 and self._outliving and self._workers is not None and self._workers.seen:
            self._say(_OUTLIVING)

    @property
    def has_begun(self) -> bool:
        """Whether a pass over the data has begun."""
        return self._pass >= 0

    def state(self) -> Mapping[str, Any]:
        """Return the place to save at a boundary, where the batches of the next step are already fetched.

        Before the first pass begins, the place is the one that was restored.
        """
        if self._restored and not self.has_begun:
            return self._restored
        needs_numbers = self._draws and not self._should_repeat_pass
        noted = {name: to_save(reading) for name, reading in self._noted.items()} if needs_numbers else {}
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
        """Give the Trainer its own method back, as the training is over."""
        self._forget()
        self._trainer.get_batch_samples = self._fetch

    def _forget(self) -> None:
        """Forget everything that belongs to one pass."""
        self._own: Any = None  # the iterator of a resumed pass, used instead of the Trainer's
        self._batches: list[Any] = []  # of the step whose batches were fetched last
        self._noted: dict[str, Reading] = {}  # the generators before that step's batches: "before", "ahead"
        self._ahead: Reading | None = None  # before the batch that was read ahead
        self._after: Reading | None = None  # after the newest fetch
        self._between: set[str] = set()  # generators from which training drew between two fetches
        self._reading = False  # whether the next batch that is read ahead is the first since the newest reading

    # --- fetching -----------------------------------------------------------------------------------------

    def fetch(self, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """Fetch the batches of a step. Arguments and result are those of Trainer.get_batch_samples.

        The first call after a resume returns the batches of the step that follows the boundary.
        """
        saved = self._saved
        self._saved = None
        if saved is not None and self._count:
            self._own = iter(self._moved(saved))
        if self._workers is None:
            self._note(self._numbers.read())
            self._reading = self._after is not None  # the first batch of a pass is made before any is read ahead
        found = self._fetch(iterator if self._own is None else self._own, *args, **kwargs)
        self._had = self._count
        self._batches = found[0]
        self._count += len(self._batches)
        if saved is not None:
            self._arrive(saved)
        if self._workers is None:
            self._notice_draws(self._numbers.read(), is_repeated=saved is not None)
        return found

    def _note(self, before: Reading) -> None:
        """Note the generators before a step's batches: of these one was read ahead, and the others are read now."""
        self._noted = {"before": before} if self._ahead is None else {"before": before, "ahead": self._ahead}
        self._ahead = None
        if self._after is not None and self._should_repeat_pass:
            self._between |= drawn_from(self._after, before)

    def _reads_ahead(self) -> None:
        """Note the generators before a batch is read ahead. The first one of a fetch needs no new reading."""
        if self._reading:
            self._ahead = self._noted["before"]
            self._reading = False
        else:
            self._ahead = self._numbers.read()

    def _notice_draws(self, after: Reading, *, is_repeated: bool) -> None:
        """Record whether the newest fetch drew random numbers, and warn if a resumed run would draw others.

        Draws for the first batch of a pass do not count: they are repeated when the pass begins again.
        """
        before = self._ahead if self._after is None else self._noted["before"]
        self._after = after
        if is_repeated or before is None:
            return
        drawn = drawn_from(before, after)
        if drawn and not self._draws:
            self._draws = bool(drawn - self._unused_orders())
        if self._should_repeat_pass and drawn & self._between:
            self._say(_BETWEEN)

    def _unused_orders(self) -> set[str]:
        """Return the generators from which samplers draw orders that nobody uses, which is at the end of a pass.

        torch's RandomSampler draws another order as its pass ends. Going back asks the samplers for the whole pass,
        so that they draw this order again.
        """
        ended = self._trainer.accelerator.gradient_state.end_of_dataloader
        return self._numbers.of_samplers() if ended else set()

    # --- going back ---------------------------------------------------------------------------------------

    def _moved(self, saved: Mapping[str, Any]) -> Any:
        """Return the loader, moved to the first batch of the step that was saved."""
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(self._pass)
        if self._should_repeat_pass or saved["drawn_in_workers"]:
            return going_back.read_on(self._loader, self._count)
        noted = saved["noted"] if self._workers is None else {}
        order = ["ahead", "before"] if "ahead" in noted else ["before"]

        def arrives(number: int) -> None:
            if number < len(order) and order[number] in noted:
                self._numbers.put_back(noted[order[number]])
            if number == 1 and self._ahead is not None:
                self._reads_ahead()  # a second time: the first was before the numbers were put back

        moved = going_back.skip(self._loader, self._count, arrives)
        if self._workers is None:
            going_back.before_each_fetch(moved, self._reads_ahead)
        return moved

    def _arrive(self, saved: Mapping[str, Any]) -> None:
        """Compare the first batches after a resume with those that were saved, and warn if they differ."""
        going_back.arrived(self._loader)
        if not same(saved["sample"], sample_of(self._batches)):
            say(OTHER_BATCHES)

    def _say(self, sentence: str) -> None:
        if self._speaks and not self._has_warned:
            say(sentence)
        self._has_warned = True
