"""Imported by test jobs before torch: spares every rank the import of torch._dynamo.

torch.optim and DistributedDataParallel import it when they are first used, to tell it to keep away from them. That
takes as long as importing torch does, and nothing here compiles anything. What else asks torch._dynamo for something
fails. Real jobs import it: tests/faults/test_warm.py and tests/e2e/test_example.py have some.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any


def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    """Nothing compiles `function` anyhow."""
    return function


if "torch._dynamo" not in sys.modules:
    stand_in = types.ModuleType("torch._dynamo")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torch._dynamo", None)
    stand_in.disable = disable  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = stand_in
