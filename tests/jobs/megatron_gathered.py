"""Notes the whole state of Megatron's distributed optimizers, as Megatron gathers it from the shards of all ranks."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state

_PLACES = ("get_tensor_model_parallel_rank", "get_pipeline_model_parallel_rank", "get_expert_model_parallel_rank")


def gather(out: Path, iteration: int, model: list[Any], optimizer: Any, when: str) -> None:
    """On the first rank of each data-parallel group: a line of masters, slots and weights of all its ranks.

    In `out`/gathered_PLACES_OPTIMIZER: iteration, digest, number of ranks, `when`, how many counts of steps there are.
    """
    if not iteration:
        return
    places = "_".join(str(getattr(parallel_state, name)()) for name in _PLACES)
    weights = [parameter for chunk in model for parameter in chunk.parameters()]
    for number, one in enumerate(getattr(optimizer, "chained_optimizers", [optimizer])):
        stepped = torch.tensor([len(one.optimizer.state)])
        torch.distributed.all_reduce(stepped)  # a rank may have no shard; before the first step nobody has slots
        whole = one.get_parameter_state_dp_zero() if stepped else {}
        if one.data_parallel_group.rank():
            continue
        buffers = [buffer for of in whole.values() if isinstance(of, dict) for buffer in of.values()]
        state = [buffer[name] for buffer in buffers for name in ("param", "exp_avg", "exp_avg_sq")]
        counts = sorted({slots["step"].item() for slots in one.optimizer.state.values()})
        digest = hashlib.sha256(repr((counts, one.optimizer.param_groups[0]["lr"])).encode())
        for tensor in (*state, *weights):
            digest.update(tensor.detach().float().cpu().numpy().tobytes())
        with (out / f"gathered_{places}_{number}").open("a") as file:
            ranks = torch.distributed.get_world_size()
            file.write(f"{iteration} {digest.hexdigest()} {ranks} {when} {len(counts)}\n")
