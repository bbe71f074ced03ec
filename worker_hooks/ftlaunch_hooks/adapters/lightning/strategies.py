"""Check whether a strategy of a Trainer or a Fabric can be kept safe."""

from __future__ import annotations

import os
from typing import Any

from ftlaunch_hooks.adapters.refusal import refuse

_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def check(strategy: Any, world_size: int, owner: str) -> None:
    """Raise AttachError for a strategy that cannot be kept safe.

    Args:
        strategy: Lightning's strategy.
        world_size: number of ranks that Lightning sees.
        owner: "Trainer" or "Fabric", for the sentence to the user.
    """
    if not any(kind.__name__ in _STRATEGIES for kind in type(strategy).__mro__):
        refuse(f"cannot attach under {type(strategy).__name__}: allowed are {' and '.join(_STRATEGIES)}")
    environment = getattr(strategy, "cluster_environment", None)
    if world_size > 1 and environment is not None and not environment.creates_processes_externally:
        refuse(
            f"cannot attach: Lightning starts {world_size} ranks itself; start the script with"
            f" `ftlaunch --nproc-per-node {world_size}`, which gives each rank its place"
        )
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != ranks:
        refuse(
            f"cannot attach: the {owner} has a world size of {world_size}, and the job has {ranks} ranks; give"
            f" {owner}(devices=..., num_nodes=...) what the job has"
        )
