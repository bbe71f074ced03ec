"""Lets Megatron-core train on a processor: what it asks of CUDA by name goes to the CPU.

Import it before megatron. Where there is a GPU it does nothing.
"""

import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Tensors for CUDA are made on the CPU, and say that their type is CUDA's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def _set(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _get(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


ON_CPU = os.environ.get("FT_DEVICE") == "cpu" or not torch.cuda.is_available()
if ON_CPU:
    OnCpu().__enter__()
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = _get
    torch.cuda.set_rng_state = torch.cuda.random.set_rng_state = _set
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None

    from megatron.core.tensor_parallel import random  # it takes functions of torch.cuda as it is imported

    random._set_cuda_rng_state = _set
    from megatron.core.transformer.moe import moe_utils  # 0.16 gives it this name with Transformer Engine alone

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
