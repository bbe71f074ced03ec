"""A script for MindSpore: `mindspore_train.py OUT STYLE`, with the faults of faults.py.

With several ranks each has its part of the data, gradients are averaged, and OUT has a folder for each.
Places of faults: step (in a callback's work at the end of that step), begin (before that step), epoch_end (of that
epoch), eval (at the end of that epoch's evaluation), saving (the step of MindSpore's own checkpoint, once its file is
there), train_end, lost (as step, and its snapshots are lost).
STYLE: words joined by +: plain (without ExceptionCheckpoint), graph or pynative; dropout, functional (random numbers
in the network); augment (the data draw random numbers of C++), python (of NumPy, in one worker), workers (processes
that make the data), unseeded; longer (five epochs), own (MindSpore's own checkpoint at the end of each epoch), half
(FP16 beside the norm, with a loss scale); fit (evaluates after each epoch); decay (a callback changes the learning
rate at the end of an epoch), noise (a callback draws a random number at each step), counts (a callback counts for
itself); wide (another network), plain_layers (without a norm, whose averages are each rank's
own); twice (train() a second time); slow; lonely (its ranks do not meet); saves (every 4
steps), careless (without exception_save).
What is left in OUT: final (digest), losses, samples, fired.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from faults import strike
from mindspore import communication, dataset, nn, ops
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint

RANK = int(os.environ.get("RANK", os.environ.get("RANK_ID", "0")))
RANKS = int(os.environ.get("WORLD_SIZE", os.environ.get("MS_WORKER_NUM", "1")))
HOME, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
OUT = HOME / str(RANK) if RANKS > 1 else HOME
if "plain" not in STYLE:
    from ftlaunch_mindspore import ExceptionCheckpoint

EPOCHS, BATCH, SAMPLES = 5 if "longer" in STYLE else 3, 4 // RANKS, 32
BATCHES = SAMPLES // BATCH // RANKS


def lose_memory() -> None:
    """Once there is a checkpoint, and nobody reads a snapshot."""
    from ftlaunch_contract.pages.page import NONE, Page, page_path

    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    checkpoints, deadline = Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"]), time.monotonic() + 60
    while page.saved < page.save_step or not any(checkpoints.glob("iteration_???????")):
        assert time.monotonic() < deadline, "there is no checkpoint"
        time.sleep(0.01)
    for slot in range(len(page.slot_steps())):
        page.set_slot(slot, NONE)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        width = 20 if "wide" in STYLE else 16
        norm = nn.Identity() if "plain_layers" in STYLE else nn.BatchNorm1d(width)
        self.first, self.norm, self.second = nn.Dense(8, width), norm, nn.Dense(width, 3)
        self.drops, self.functional = "dropout" in STYLE, "functional" in STYLE
        self.dropout = nn.Dropout(p=0.3) if self.drops else nn.ReLU()

    def construct(self, inputs):
        hidden = ops.relu(self.norm(self.first(inputs)))
        if self.drops:
            hidden = self.dropout(hidden)
        if self.functional:
            hidden = ops.dropout(hidden, p=0.3)
        return self.second(hidden)


class Watch(Callback):
    """Notes each step's loss and data, and strikes."""

    def on_train_step_begin(self, run_context) -> None:
        strike("begin", run_context.original_args().cur_step_num)

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        step, outputs = params.cur_step_num, params.net_outputs
        loss = float((outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy())
        data = hashlib.sha256(b"".join(one.asnumpy().tobytes() for one in params.train_dataset_element))
        noise = np.random.rand() + random.random() if "noise" in STYLE else 0.0
        with (OUT / "losses").open("a") as file:
            file.write(
                f"{step} {params.cur_epoch_num}/{params.epoch_num}/{loss.hex()}/{data.hexdigest()[:8]}/{noise}\n"
            )
        if "slow" in STYLE:
            time.sleep(0.1)
        with (OUT / "samples").open("a") as file:
            file.writelines(f"{step} {row[0]:.6f}\n" for row in params.train_dataset_element[0].asnumpy())
        if "counts" in STYLE:
            self.made = getattr(self, "made", 0) + 1
        strike("step", step)
        strike("lost", step, lose_memory)

    def on_train_epoch_end(self, run_context) -> None:
        params = run_context.original_args()
        strike("epoch_end", params.cur_epoch_num)
        if "decay" in STYLE:
            rate = params.optimizer.learning_rate
            rate.set_data(rate.value() * 0.5)

    def on_eval_end(self, run_context) -> None:
        strike("eval", run_context.original_args().cur_epoch_num)

    def on_train_end(self, run_context) -> None:
        strike("train_end", 0)


def make_data() -> dataset.Dataset:
    numbers = np.random.RandomState(3)
    columns = {
        "inputs": numbers.randn(SAMPLES, 8).astype(np.float32),
        "labels": numbers.randint(0, 3, SAMPLES).astype(np.int32),
    }
    part = {"num_shards": RANKS, "shard_id": RANK} if RANKS > 1 else {}
    data = dataset.NumpySlicesDataset(columns, shuffle=True, **part)
    if "augment" in STYLE:
        data = data.map(dataset.transforms.RandomApply([dataset.transforms.Fill(1.0)], 0.3), ["inputs"])
    if "workers" in STYLE:
        data = data.map(twice, ["inputs"], num_parallel_workers=2, python_multiprocessing=True)
    if "python" in STYLE:
        data = data.map(lambda row: row + np.float32(np.random.rand()), ["inputs"], num_parallel_workers=1)
    return data.shuffle(16).batch(BATCH)


def twice(row: np.ndarray) -> np.ndarray:
    return row * np.float32(2)


def struck_in_its_save(checkpoint: ModelCheckpoint) -> ModelCheckpoint:
    """Its files are written by this function of its module."""
    module = sys.modules[ModelCheckpoint.__module__]
    save = module.save_checkpoint

    def struck(*args, **kwargs) -> None:
        save(*args, **kwargs)
        strike("saving", checkpoint._last_triggered_step or 0)

    module.save_checkpoint = struck
    return checkpoint


def callbacks() -> list[Callback]:
    found: list[Callback] = [LossMonitor(1000), Watch()]
    if "own" in STYLE:
        config = CheckpointConfig(save_checkpoint_steps=BATCHES, keep_checkpoint_max=2)
        found.append(struck_in_its_save(ModelCheckpoint("own", str(OUT / "own"), config)))
    if "plain" not in STYLE:
        every = 4 if "saves" in STYLE else 1000
        careful = "careless" not in STYLE
        config = CheckpointConfig(save_checkpoint_steps=every, keep_checkpoint_max=2, exception_save=careful)
        found.append(ExceptionCheckpoint(prefix="net", directory=str(HOME / "checkpoints"), config=config))
    return found


def make_model() -> Model:
    network = Network()
    rate = 0.05 if "decay" in STYLE else nn.cosine_decay_lr(0.0, 0.05, 1000, BATCHES, EPOCHS)
    scale = 1024.0 if "half" in STYLE else 1.0
    optimizer = nn.Momentum(network.trainable_params(), rate, 0.9, loss_scale=scale)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    metrics = {"accuracy"} if "fit" in STYLE else None
    if "half" in STYLE:
        manager = ms.amp.FixedLossScaleManager(scale, drop_overflow_update=False)
        return Model(network, loss, optimizer, metrics, amp_level="O2", loss_scale_manager=manager)
    return Model(network, loss_fn=loss, optimizer=optimizer, metrics=metrics)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    ms.set_context(mode=ms.PYNATIVE_MODE if "pynative" in STYLE else ms.GRAPH_MODE)
    if RANKS > 1 and "lonely" not in STYLE:
        communication.init()
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    if "unseeded" not in STYLE:
        ms.set_seed(7)
    model, data = make_model(), make_data()
    if "twice" in STYLE:
        model.train(1, make_data(), callbacks=callbacks())
    if "fit" in STYLE:
        model.fit(EPOCHS, data, make_data(), callbacks=callbacks())
    else:
        model.train(EPOCHS, data, callbacks=callbacks())
    held = b"".join(one.asnumpy().tobytes() for one in model.train_network.get_parameters())
    (OUT / "final").write_text(hashlib.sha256(held).hexdigest())
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
