"""One rank, under ftlaunch, of a job that measures its checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import copies
import stalls
import torch
import torch.distributed as dist
from states import Trained

import ftlaunch_hooks as ft


def main() -> None:
    """Measure, and write what rank 0 has measured to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", required=True, help="see states.Trained")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True, help="rounds of the measurement of stalls")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trained = Trained(args.what)
    job = ft.attach(model=trained.model, optimizer=trained.optimizer)
    found = {"copies": copies.measure(trained, job, args.home, args.rounds)}
    found["stalls"] = stalls.measure(trained, job, args.home, args.turns)
    if dist.get_rank() == 0:
        (args.home / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
