"""The lines of ModelArts' document on a graceful end, as they stand there but for the import: OUT STYLE."""

import hashlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint

from ftlaunch_mindspore import ExceptionCheckpoint

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))


class Watch(Callback):
    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        with (OUT / "losses").open("a") as file:
            file.write(f"{params.cur_step_num} {float(params.net_outputs.asnumpy()).hex()}\n")
        time.sleep(0.1 if "slow" in STYLE else 0.0)


def create_dataset() -> ds.Dataset:
    numbers = np.random.RandomState(3)
    columns = {"image": numbers.randn(24, 8).astype(np.float32), "label": numbers.randint(0, 3, 24).astype(np.int32)}
    return ds.NumpySlicesDataset(columns, shuffle=True).batch(4)


OUT.mkdir(parents=True, exist_ok=True)
ms.set_seed(1)
args_opt = SimpleNamespace(do_train=True, train_url=str(OUT / "train_url"))
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
    model.train(4, dataset, callbacks=[*cb, Watch()])

held = b"".join(one.asnumpy().tobytes() for one in model.train_network.get_parameters())
(OUT / "final").write_text(hashlib.sha256(held).hexdigest())
