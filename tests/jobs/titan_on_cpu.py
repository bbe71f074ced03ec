"""What torchtitan asks of an accelerator, answered for a CPU; then torchtitan. A warm parent imports it, too."""

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

_TELLS = {
    "get_device_name": lambda _device=None: "CPU",
    "get_device_properties": lambda _device=None: SimpleNamespace(total_memory=1 << 30),
    "reset_peak_memory_stats": lambda: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda _device=None: {},
}


def _answer() -> None:
    """torch.cpu is the accelerator. Gloo cannot change the time limits of its groups: they stay as they are.

    Kernels of expert parallelism are written in Triton, which a CPU has not; no model here has experts.
    """
    sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
    module: Any = torch._utils
    module._get_available_device_type = lambda: "cpu"
    for name, tells in _TELLS.items():
        setattr(torch.cpu, name, tells)
    from torchtitan.distributed import utils

    utils.set_pg_timeouts = lambda timeout, parallel_dims: None


if not torch.cuda.is_available():
    _answer()

import torchtitan.models.llama3  # noqa: E402
import torchtitan.trainer  # noqa: E402, F401
