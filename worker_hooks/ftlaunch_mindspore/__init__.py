"""MindSpore: `ExceptionCheckpoint` keeps `Model.train()` safe, and goes on at its step. Needs MindSpore, and no torch.

from ftlaunch_mindspore import ExceptionCheckpoint

ckpoint_exp = ExceptionCheckpoint(prefix="resnet", directory="checkpoints", config=config_ck)
model.train(90, dataset, callbacks=[LossMonitor(), ckpoint_exp])
"""

from ftlaunch_hooks.process import bootstrap
from ftlaunch_mindspore import model_wrapping
from ftlaunch_mindspore.callback import ExceptionCheckpoint
from ftlaunch_mindspore.cluster import roles
from ftlaunch_mindspore.refusal import TrainingRefused

__all__ = ["ExceptionCheckpoint", "TrainingRefused"]

bootstrap.install()
roles.adopt()
model_wrapping.install(ExceptionCheckpoint, ExceptionCheckpoint.of_all_ranks)
