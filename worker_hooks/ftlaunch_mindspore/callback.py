"""The callback that keeps a MindSpore training: saves it when it is told to stop, and resumes it at its step.

The wrapped `Model.train()` and `Model.fit()` (model_wrapping) call `join` before MindSpore builds anything; MindSpore
calls the `on_...` methods during training. All of this happens on the main thread of each rank.
"""

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
from ftlaunch_mindspore.saving.snapshots import ArrayState
from ftlaunch_mindspore.training_state import TrainingState
from ftlaunch_mindspore.unsaved import Unsaved

_begun = False  # whether this process has begun to keep a training: each keeps only its first one


class ExceptionCheckpoint(Callback):  # type: ignore[misc] # MindSpore has no types
    """Saves a training at a step boundary when it is told to stop, and lets the next run go on from there.

    For `Model.train()` and `Model.fit()`, among their callbacks. A checkpoint is also made every
    `save_checkpoint_steps` (or seconds) of the config; `keep_checkpoint_max` of them are kept. Where several ranks
    train together, it is enough that one of them has it.
    """

    def __init__(
        self, prefix: str | None = None, directory: str | None = None, config: CheckpointConfig | None = None
    ) -> None:
        """Check the arguments; training is joined later.

        Args:
            prefix: how the names of checkpoint files begin; None: as the environment or the supervisor says.
            directory: where checkpoints are saved; None: as the environment or the supervisor says.
            config: when to save and how many checkpoints to keep, with exception_save=True.

        Raises:
            TrainingRefused: an argument asks for something that cannot be done.
        """
        super().__init__()
        self.others: list[Callback] = []
        """the script's own callbacks; model_wrapping sets them before training begins"""
        self.epochs = 0
        """number of epochs of this training; set by model_wrapping"""
        self.steps = 0
        """number of steps in those epochs; set by model_wrapping"""
        self._joined = False
        self._state: TrainingState | None = None
        error_file.count_as_final(TrainingRefused)
        self._given = settings.read(prefix, directory, config)

    @classmethod
    def of_all_ranks(cls, own: ExceptionCheckpoint | None) -> ExceptionCheckpoint | None:
        """Return the callback that keeps this rank, or None where no rank has a callback.

        Ranks that train together are all kept, even if the script gives the callback only to some of them: a rank
        without a callback gets a new one with the settings of the first rank that has one. This is a collective: every
        rank that trains calls it at the same place.

        Args:
            own: the callback that the script gave to this rank, if any.
        """
        given = settings.exchange(None if own is None else own._given)
        first = next(((rank, chosen) for rank, chosen in enumerate(given) if chosen is not None), None)
        if own is not None or first is None:
            return own
        having, theirs = first
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
        """Find out at which step training begins, and seed the data pipeline.

        Args:
            dataset: the training's data set.
            sinks: the script's `dataset_sink_mode`, which moves whole epochs to the device.

        Returns:
            The number of steps that were completed before.

        Raises:
            TrainingRefused: this training cannot be kept or cannot be resumed.
        """
        global _begun  # noqa: PLW0603 - one process keeps one training
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
        self._batch = int(dataset.get_batch_size())
        self._batches = int(dataset.get_dataset_size())
        self._warned_of_unsaved = False
        if saved is not None and saved.ranks != self._job.world_size:
            self._report_other_ranks(saved)
        return self._job.step

    def _report_other_ranks(self, saved: SavedStep) -> None:
        """Tell the user what differs because another number of ranks resumes the training.

        Raises:
            TrainingRefused: a step would stand for other data than before.
        """
        ranks = self._job.world_size
        training = saved.trees["training"]
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
        """Restore the parameters of a training whose steps were all completed before, and end it.

        The arguments are those of TrainingState. Raises TrainingRefused.
        """
        state = TrainingState(
            rank=self._job.rank,
            train_network=train_network,
            network=network,
            optimizer=optimizer,
            loss_scale=loss_scale,
        )
        self._restore(state)
        self._job.enter(self._collect, self._job.step * self._batch, self.steps)
        self._job.end()

    # --- called by MindSpore ------------------------------------------------------------------------------------

    def on_train_begin(self, run_context: RunContext) -> None:
        """Check the ranks, and have MindSpore count from the step that was restored. Raises TrainingRefused."""
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
        """Cross the boundary before a step: restore the state before the first one, take a snapshot before others.

        The step before is complete now, with everything that callbacks and evaluations did after it. Raises
        TrainingRefused, and SystemExit where the job stops here.
        """
        params = run_context.original_args()
        done = params.cur_step_num - 1
        if self._state is None:
            state = TrainingState(
                rank=self._job.rank,
                train_network=params.train_network,
                network=params.network,
                optimizer=params.optimizer,
                loss_scale=params.loss_scale_mananger,  # MindSpore spells it so
            )
            self._restore(state)
            self._unsaved = Unsaved(params.train_network, self.others)
            self._job.enter(self._collect, done * self._batch, self.steps)
            return
        self._job.cross(done, done * self._batch)
        if not self._warned_of_unsaved:
            self._warned_of_unsaved = True
            self._unsaved.look(done)
            self._warn_of_drawn_numbers()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Record that a step was made; whatever runs before the next one still belongs to this step."""
        self._job.step_made()

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Record on the page that an evaluation begins."""
        self._job.evaluates(True)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Record on the page that the evaluation is over."""
        self._job.evaluates(False)

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last step, and end the job."""
        if self._state is not None:
            self._job.step = run_context.original_args().cur_step_num
            self._job.end()

    # --- the state ----------------------------------------------------------------------------------------------

    def _restore(self, state: TrainingState) -> None:
        """Give `state` and the generators what was saved, if anything. Raises TrainingRefused."""
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

    def _collect(self) -> ArrayState:
        """Return the state of this moment."""
        assert self._state is not None
        trees = self._state.trees()
        trees["training"] |= {
            "data": self._data.state, "random": random_numbers.collect(), "append_info": self._given.append_info,
            "batch": self._batch, "batches": self._batches,
        }  # fmt: skip
        return ArrayState(self._state.arrays(), trees)

    def _warn_of_drawn_numbers(self) -> None:
        """Say that a resumed run may differ, if Python's or NumPy's global generator is used during training."""
        if self._python_data and self._data.drawn_since:
            say(
                "not exact for certain: Python's or NumPy's random numbers are drawn while training goes on. Those of"
                " functions of the data pipeline are drawn again as they were, where one worker draws them; those that"
                " callbacks draw beside them are not"
            )
