"""ExceptionCheckpoint: the callback of a training that is told to stop, and goes on where it was."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import mindspore as ms
from mindspore import communication
from mindspore.train import Callback, CheckpointConfig, RunContext

from ftlaunch_contract import protocol
from ftlaunch_hooks.process import error_file
from ftlaunch_hooks.process.say import say
from ftlaunch_mindspore import model_wrapping, random_numbers, settings
from ftlaunch_mindspore.kept_job import KeptJob
from ftlaunch_mindspore.random_numbers import DataSeed
from ftlaunch_mindspore.refusal import TrainingRefused
from ftlaunch_mindspore.saving.saved_step import SavedStep
from ftlaunch_mindspore.saving.slot import Groups
from ftlaunch_mindspore.training_state import TrainingState
from ftlaunch_mindspore.unsaved import Unsaved

_begun = False  # one process keeps one training


class ExceptionCheckpoint(Callback):  # type: ignore[misc] # MindSpore has no types
    """Saves a training at a step boundary when it is told to stop, and lets the next run go on from there.

    For `Model.train()` and `Model.fit()`, among their callbacks. A checkpoint is also made every
    `save_checkpoint_steps` (or seconds) of the config; `keep_checkpoint_max` of them are kept. Where several ranks
    train together, it is enough that one of them has it.
    """

    def __init__(
        self, prefix: str | None = None, directory: str | None = None, config: CheckpointConfig | None = None
    ) -> None:
        """prefix: of the files' names. directory: of the checkpoints. config: with exception_save=True.

        Raises TrainingRefused for what cannot be kept.
        """
        super().__init__()
        self.others: list[Callback] = []  # the script's own; set before training begins
        self.epochs = self.steps = 0
        self._joined = False
        self._state: TrainingState | None = None
        error_file.count_as_final(TrainingRefused)
        self._given = settings.read(prefix, directory, config)

    @classmethod
    def of_all_ranks(cls, own: ExceptionCheckpoint | None) -> ExceptionCheckpoint | None:
        """Return this rank's callback, one that is made for it, or None where no rank has one.

        Where ranks train together all of them are kept, also where the script gives the callback to some of them alone:
        the others get one with what the first of these was given. Every rank that trains calls it.
        """
        given = settings.exchange(None if own is None else own._given)
        found = next(((rank, one) for rank, one in enumerate(given) if one is not None), None)
        if own is not None or found is None:
            return own
        having, theirs = found
        without = given.index(None)
        if communication.get_rank() == without and os.environ.get(protocol.ENV_ATTEMPT, "0") == "0":
            say(
                f"rank {without} has no ExceptionCheckpoint, and rank {having} has one: all ranks are kept, with"
                f" what it was given on rank {having}"
            )
        made = cls()
        made._given = dataclasses.replace(theirs, append_info={})
        return made

    # --- called by the wrapped Model.train(), before MindSpore makes anything -----------------------------------

    def join(self, dataset: Any, sinks: bool) -> int:
        """Find out where training begins, and seed the data pipeline; returns the steps that were made before.

        sinks: whether the data set is sunk to a device. Raises TrainingRefused.
        """
        global _begun  # noqa: PLW0603 - see above
        if _begun:
            raise TrainingRefused("cannot keep a second training of one process: only the first one can be resumed")
        _begun = True
        if sinks and ms.get_context("device_target") != "CPU":
            raise TrainingRefused("cannot keep this training: with dataset_sink_mode=True no step ends on the host")
        if dataset.get_init_step():
            raise TrainingRefused("cannot keep this training: its data set was moved to a step by set_init_step()")
        coordinator = settings.join(self._given)
        self._joined = True
        self._job = KeptJob(coordinator, settings.ask(self._given, coordinator))
        saved = self._job.saved
        self._data = DataSeed(saved.trees["training"]["data"] if saved is not None else None)
        self._python_data = model_wrapping.has_python_functions(dataset)
        self._batch, self._looked = int(dataset.get_batch_size()), False
        self._batches = int(dataset.get_dataset_size())
        if saved is not None and saved.ranks != self._job.world_size:
            self._goes_on_with_other_ranks(saved)
        return self._job.step

    def _goes_on_with_other_ranks(self, saved: SavedStep) -> None:
        """Say what is not as it was. Raises TrainingRefused where a step stands for other data than before."""
        ranks, training = self._job.world_size, saved.trees["training"]
        if "batch" not in training:
            raise TrainingRefused(
                f"cannot resume: {saved.ranks} ranks have saved step {saved.step} with an earlier version, which did"
                f" not note how many samples a step takes; start with {saved.ranks} ranks"
            )
        before = (training["batch"] * saved.ranks, training["batches"])
        now = (self._batch * ranks, self._batches)
        if before != now:
            raise TrainingRefused(
                f"cannot resume: {saved.ranks} ranks have saved step {saved.step}, {before[0]} samples a step and"
                f" {before[1]} steps an epoch; {ranks} ranks have {now[0]} and {now[1]}, and the step would stand for"
                f" other data; give each rank a batch of {before[0] / ranks:g}, or start with {saved.ranks} ranks"
            )
        if self._job.rank == 0:
            say(
                f"{saved.ranks} ranks have saved step {saved.step}, and {ranks} go on: parameters and optimizer are as"
                " they were, on all of them; which rank gets which samples, random numbers, and the order in which"
                " gradients are added are not, so this run is not exact from here on"
            )

    def only_restore(self, train_network: Any, network: Any, optimizer: Any, loss_scale: Any) -> None:
        """All steps were made before: the network gets its parameters, and training is over."""
        self._restore(TrainingState(self._job.rank, train_network, network, optimizer, loss_scale))
        self._job.enter(self._collect, self._job.step * self._batch, self.steps)
        self._job.end()

    # --- called by MindSpore ------------------------------------------------------------------------------------

    def on_train_begin(self, run_context: RunContext) -> None:
        """The steps that were made before count."""
        params = run_context.original_args()
        if not self._joined:
            raise TrainingRefused(
                "cannot keep this training: ftlaunch_mindspore was imported behind `model.train`; import it at the"
                " top of the script"
            )
        if params.device_number not in (1, self._job.world_size):
            raise TrainingRefused(
                f"cannot keep this training: MindSpore has {params.device_number} devices, and the job has"
                f" {self._job.world_size} ranks; start it with `ftlaunch --nproc-per-node {params.device_number}`,"
                " or by msrun"
            )
        params.cur_step_num = self._job.step
        params.epoch_num = self.epochs

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """The boundary: the step before is complete, with all that callbacks and evaluations have made of it."""
        params = run_context.original_args()
        done = params.cur_step_num - 1
        if self._state is None:
            manager = params.loss_scale_mananger
            state = TrainingState(self._job.rank, params.train_network, params.network, params.optimizer, manager)
            self._restore(state)
            self._unsaved = Unsaved(params.train_network, self.others)
            self._job.enter(self._collect, done * self._batch, self.steps)
            return
        self._job.cross(done, done * self._batch)
        if not self._looked:
            self._looked = True
            self._unsaved.look(done)
            self._look_at_generators()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """What comes before the next step begins still belongs to this one."""
        self._job.step_made()

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Say so."""
        self._job.evaluates(True)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Say so."""
        self._job.evaluates(False)

    def on_train_end(self, run_context: RunContext) -> None:
        """The last step is complete."""
        if self._state is not None:
            self._job.step = run_context.original_args().cur_step_num
            self._job.end()

    # --- the state ----------------------------------------------------------------------------------------------

    def _restore(self, state: TrainingState) -> None:
        self._state = state
        if self._job.weights is not None:
            state.load_weights(self._job.weights)
        if (saved := self._job.saved) is None:
            return
        try:
            state.restore(saved.trees, saved.arrays)
        except TrainingRefused as error:
            raise TrainingRefused(f"{error} (saved at step {saved.step}); give --fresh to start over") from None
        random_numbers.restore(saved.trees["training"]["random"], own_generators=not self._python_data)

    def _collect(self) -> tuple[Groups, dict[str, Any]]:
        assert self._state is not None
        trees = self._state.trees()
        trees["training"] |= {
            "data": self._data.state, "random": random_numbers.collect(), "append_info": self._given.append_info,
            "batch": self._batch, "batches": self._batches,
        }  # fmt: skip
        return self._state.arrays(), trees

    def _look_at_generators(self) -> None:
        if self._python_data and self._data.drawn_since:
            say(
                "not exact for certain: Python's or NumPy's random numbers are drawn while training goes on. Those of"
                " functions of the data pipeline are drawn again as they were, where one worker draws them; those that"
                " callbacks draw beside them are not"
            )
