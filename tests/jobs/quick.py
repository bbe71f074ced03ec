"""Imported by test jobs before torch: spares every rank what torch imports and these jobs never use.

Optimizers, DistributedDataParallel and process groups import torch._dynamo when they are first used, to tell it to keep
away from them. That takes as long as importing torch does, and nothing here compiles anything. A third of torch's own
import describes operations to tracers. DTensor needs the real ones: jobs that shard their state do without this.
tests/faults/test_warm.py, tests/zoo and the example job have the real ones, too.
"""

import importlib.machinery
import importlib.util
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

    def __or__(self, _: object) -> "Nothing":
        return self  # an annotation of torch 2.10's

    __ror__ = __or__


class StandIn(types.ModuleType):
    """As torch._dynamo is to code that is not to be compiled, and the others are to code that is not traced."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Nothing:
        return getattr(Nothing(), name)


def _stand_in_for(name: str) -> None:
    spec = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = StandIn(name)
    sys.modules[name].__spec__ = spec


if "torch" in sys.modules:
    if "torch._dynamo" not in sys.modules:
        _stand_in_for("torch._dynamo")
else:
    for _name in _UNUSED:
        _stand_in_for(_name)
    _torch = importlib.util.find_spec("torch")
    assert _torch is not None
    sys.modules["torch._prims"].__path__ = [f"{folder}/_prims" for folder in _torch.submodule_search_locations or ()]
    import torch  # noqa: F401 - in a forked rank the real ones are back with it

    if "torch._prims.rng_prims" not in sys.modules:
        importlib.import_module("torch._prims.rng_prims")  # without it there is no torch.Generator
