"""Collectives on the simulated accelerator: late, on streams of their own, and given up when a group is aborted.

Whole jobs of several ranks, with DistributedDataParallel and fully_shard, are shapes of the zoo: see test_zoo.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftlaunch.system.ports import free_port
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BEGIN = """
import os
import torch
from torch import distributed as dist
from tests.accelerator import simulated

simulated.register()
simulated.plug_in()
dist.init_process_group(f"cpu:gloo,sim:{simulated.BACKEND}")
rank = dist.get_rank()
"""


def assert_two_ranks_end_well(script: str) -> None:
    """Run a script as two ranks with a process group; it knows `torch`, `dist`, `simulated` and `rank`."""
    port = str(free_port("127.0.0.1"))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script],
            env=environment | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=DEADLINE)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)


def test_a_collective_is_late_and_a_stream_that_waits_for_it_is_behind_it() -> None:
    assert_two_ranks_end_well(
        "values = torch.full((3,), rank + 1.0, device='sim')\n"
        "torch.accelerator.synchronize()\n"
        "dist.barrier()\n"
        "simulated.set_delays(kernel_ms=500)\n"
        "work = dist.all_reduce(values, async_op=True)\n"
        "simulated.set_delays()\n"
        "assert not work.is_completed()\n"
        "assert values.tolist() == [rank + 1.0] * 3, 'nothing waits for it yet'\n"
        "work.wait()\n"
        "assert not work.is_completed(), 'the process does not wait, only its stream'\n"
        "assert values.tolist() == [3.0] * 3\n"
        "assert work.is_completed()\n"
        "dist.destroy_process_group()\n"
    )


def test_a_collective_comes_after_what_its_caller_has_queued() -> None:
    assert_two_ranks_end_well(
        "values = torch.zeros(3, device='sim')\n"
        "simulated.set_delays(kernel_ms=300)\n"
        "values.fill_(rank + 1)\n"
        "dist.all_reduce(values)\n"
        "values.add_(1)\n"
        "assert values.tolist() == [4.0] * 3\n"
        "dist.destroy_process_group()\n"
    )


def test_memory_of_a_collective_is_not_handed_out_before_it_ends() -> None:
    assert_two_ranks_end_well(
        "values = torch.ones(3, device='sim')\n"
        "address = values.data_ptr()\n"
        "simulated.set_delays(kernel_ms=300)\n"
        "work = dist.all_reduce(values, async_op=True)\n"
        "simulated.set_delays()\n"
        "del values, work\n"
        "other = torch.empty(3, device='sim')\n"
        "assert other.data_ptr() != address\n"
        "torch.accelerator.synchronize()\n"
        "assert torch.empty(3, device='sim').data_ptr() == address\n"
        "dist.destroy_process_group()\n"
    )


def test_collectives_give_what_they_give_on_a_processor() -> None:
    assert_two_ranks_end_well(
        "def found(device):\n"
        "    mine = torch.arange(4.0, device=device) + 10 * rank\n"
        "    sums = [mine.clone() for _ in range(2)]\n"
        "    dist.all_reduce(sums[0])\n"
        "    dist.all_reduce(sums[1], op=dist.ReduceOp.MAX)\n"
        "    sent = mine.clone()\n"
        "    dist.broadcast(sent, 1)\n"
        "    gathered = [torch.empty(4, device=device) for _ in range(2)]\n"
        "    dist.all_gather(gathered, mine)\n"
        "    joined = torch.empty(8, device=device)\n"
        "    dist.all_gather_into_tensor(joined, mine)\n"
        "    part, shares = torch.empty(2, device=device), torch.empty(4, device=device)\n"
        "    dist.reduce_scatter_tensor(part, mine)\n"
        "    dist.all_to_all_single(shares, mine)\n"
        "    if rank == 0:\n"
        "        dist.send(mine, 1)\n"
        "    else:\n"
        "        dist.recv(mine, 0)\n"
        "    return [value.tolist() for value in (*sums, sent, *gathered, joined, part, shares, mine)]\n"
        "assert found('sim') == found('cpu')\n"
        "mean = torch.full((3,), float(rank), device='sim')\n"
        "dist.all_reduce(mean, op=dist.ReduceOp.AVG)\n"
        "assert mean.tolist() == [0.5] * 3, 'gloo has no average'\n"
        "dist.destroy_process_group()\n"
    )


def test_an_aborted_group_does_not_hold_up_the_device() -> None:
    """The other rank never takes part: without the abort this waits for gloo's half hour."""
    assert_two_ranks_end_well(
        "values = torch.ones(3, device='sim')\n"
        "if rank == 0:\n"
        "    work = dist.all_reduce(values, async_op=True)\n"
        "    backend = dist.group.WORLD._get_backend(values.device)\n"
        "    while backend._get_sequence_number_for_group() == 0:\n"
        "        pass\n"
        "    assert not work.is_completed()\n"
        "    dist.group.WORLD.abort()\n"
        "    torch.accelerator.synchronize()\n"
        "    assert work.is_completed()\n"
        "    try:\n"
        "        dist.all_reduce(values)\n"
        "    except RuntimeError as error:\n"
        "        assert 'was aborted' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
        "dist.group.WORLD.get_group_store().set(f'done {rank}', 'yes')\n"
        "dist.group.WORLD.get_group_store().wait([f'done {1 - rank}'])\n"
        "os._exit(0)\n"
    )
