"""Imported by test jobs before torch: spares every rank what torch imports and these jobs never use.

Optimizers, DistributedDataParallel and process groups import torch._dynamo when they are first used, to tell it to keep
away from them. That takes as long as importing torch does, and nothing here compiles anything. A third of torch's own
import describes operations to tracers. DTensor needs the real ones: jobs that shard their state do without this.
tests/faults/test_warm.py, tests/zoo and the example job have the real ones, too.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

_UNUSED = (
    "pynvml",  # torch.cuda asks whether it is there
    "torch._dynamo",
    "torch._meta_registrations",
    "torch._prims",
    "torch._refs",
    "torch.export",
)


class Nothing:
    """Whatever it is asked for, there is none."""

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> "Nothing":
        return self

    def __bool__(self) -> bool:
        return False


class StandIn(types.ModuleType):
    """As torch._dynamo is to code that is not to be compiled, and the others are to code that is not traced."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Nothing:
        return getattr(Nothing(), name)


for _name in _UNUSED:
    if _name not in sys.modules and ("torch" not in sys.modules or _name == "torch._dynamo"):
        sys.modules[_name] = StandIn(_name)
        sys.modules[_name].__spec__ = importlib.machinery.ModuleSpec(_name, None)
