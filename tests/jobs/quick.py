"""Imported by test jobs before torch: spares every rank the import of torch._dynamo.

Optimizers, DistributedDataParallel and process groups import it when they are first used, to tell it to keep away from
them. That takes as long as importing torch does, and nothing here compiles anything. DTensor needs the real one: jobs
that shard their state do without this. tests/faults/test_warm.py and the example job have the real one, too.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any


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
    """As torch._dynamo is to code that is not to be compiled."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Nothing:
        return getattr(Nothing(), name)


if "torch._dynamo" not in sys.modules:
    sys.modules["torch._dynamo"] = StandIn("torch._dynamo")
    sys.modules["torch._dynamo"].__spec__ = importlib.machinery.ModuleSpec("torch._dynamo", None)
