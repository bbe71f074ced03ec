"""The lines of ModelArts' document on a graceful end, as they stand there but for the import: OUT STYLE.

With several ranks each has its part of the data, gradients are averaged, and OUT has a folder for each rank's losses.
STYLE: words joined by +: slow; plain (nothing of ours); every (an epoch is a single step).
FAULT: see faults.py; step (in a callback's work at the end of that step).
"""

import hashlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from faults import strike
from mindspore import communication, nn
from mindspore import dataset as ds
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
if "plain" not in STYLE:
    from ftlaunch_mindspore import ExceptionCheckpoint
else:
    os.environ.setdefault("RANK_ID", "0")  # as ModelArts has it

    class ExceptionCheckpoint(Callback):
        def __init__(self, **_: object) -> None:
            super().__init__()


RANKS = int(os.environ.get("WORLD_SIZE", os.environ.get("MS_WORKER_NUM", "1")))
HOME = OUT
if RANKS > 1:
    communication.init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    OUT = HOME / str(communication.get_rank())


class Watch(Callback):
    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        with (OUT / "losses").open("a") as file:
            file.write(f"{params.cur_step_num} {float(params.net_outputs.asnumpy()).hex()}\n")
        time.sleep(0.1 if "slow" in STYLE else 0.0)
        strike("step", params.cur_step_num)


def create_dataset() -> ds.Dataset:
    numbers = np.random.RandomState(3)
    columns = {"image": numbers.randn(24, 8).astype(np.float32), "label": numbers.randint(0, 3, 24).astype(np.int32)}
    if "every" in STYLE:
        columns = {name: column[:4] for name, column in columns.items()}
    part = {"num_shards": RANKS, "shard_id": communication.get_rank()} if RANKS > 1 else {}
    return ds.NumpySlicesDataset(columns, shuffle=True, **part).batch(4 // RANKS)


OUT.mkdir(parents=True, exist_ok=True)
ms.set_seed(1)
args_opt = SimpleNamespace(do_train=True, train_url=str(HOME / "train_url"))
cur_epoch_num = 0
net = nn.Dense(8, 3)
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), opt)

# fmt: off
if args_opt.do_train:
    dataset = create_dataset()
    loss_cb = LossMonitor()
    cb = [loss_cb]
    if int(os.getenv('RANK_ID')) == 0:
        batch_num = dataset.get_dataset_size()
        config_ck = CheckpointConfig(save_checkpoint_steps=batch_num,
                                     keep_checkpoint_max=35,
                                     async_save=True,
                                     append_info=[{"epoch_num": cur_epoch_num}],
                                     exception_save=True)

        ckpoint_cb = ModelCheckpoint(prefix="train_resnet_cifar10",
                                     directory=args_opt.train_url,
                                     config=config_ck)
        ckpoint_exp = ExceptionCheckpoint(
            prefix="train_resnet_cifar10",
            directory=args_opt.train_url,
            config=config_ck)
        cb += [ckpoint_cb, ckpoint_exp]
# fmt: on
    model.train(24 if "every" in STYLE else 4, dataset, callbacks=[*cb, Watch()])

held = b"".join(one.asnumpy().tobytes() for one in model.train_network.get_parameters())
(OUT / "final").write_text(hashlib.sha256(held).hexdigest())
