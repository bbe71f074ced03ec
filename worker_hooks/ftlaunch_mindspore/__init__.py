"""Keep the trainings of MindSpore's `Model` safe by the callback `ExceptionCheckpoint`. Torch is not needed.

Importing this package, in each rank, joins the supervisor, sets the variables of MindSpore's dynamic cluster and wraps
`Model.train()` and `Model.fit()`:

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
