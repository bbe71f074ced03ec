"""The simulated accelerator is as hostile as it is to be: what is not waited for is late, or lost, or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.accelerator import simulated

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LATE_MS = 300


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that knows `torch` and `simulated`, with the devices plugged in."""
    return subprocess.run(
        [sys.executable, "-c", f"import os, torch\nfrom tests.accelerator import simulated\n{script}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "worker_hooks")))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_torch_knows_two_devices() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.get_device_module("sim") is simulated
    assert torch.accelerator.device_count() == 2
    assert not simulated.is_initialized()
    assert torch.ones(3, device="sim:1").device == torch.device("sim", 1)
    assert simulated.is_initialized()
    assert (simulated.has_context(0), simulated.has_context(1)) == (False, True)


def test_a_kernel_writes_late_and_its_own_stream_waits_for_it() -> None:
    here, other = torch.zeros(3, device="sim"), torch.Stream("sim")
    simulated.set_delays(kernel_ms=LATE_MS)
    here.fill_(1)
    simulated.set_delays()
    with other:
        assert here.tolist() == [0, 0, 0]
        assert (here + 1).tolist() == [1, 1, 1]
    assert here.tolist() == [1, 1, 1]


def test_a_stream_waits_for_another_one_s_event() -> None:
    here, other = torch.zeros(3, device="sim"), torch.Stream("sim")
    simulated.set_delays(kernel_ms=LATE_MS)
    here.fill_(1)
    simulated.set_delays()
    other.wait_stream(torch.accelerator.current_stream())
    with other:
        assert here.tolist() == [1, 1, 1]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_to_the_host_that_does_not_block_arrives_late(pinned: bool) -> None:
    here, there = torch.ones(3, device="sim"), torch.zeros(3, pin_memory=pinned)
    assert there.is_pinned() == pinned
    simulated.set_delays(fetch_ms=LATE_MS)
    there.copy_(here, non_blocking=True)
    assert there.tolist() == [0, 0, 0]
    torch.accelerator.synchronize()
    assert there.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("pinned", "read"), [(False, 1), (True, 2)])
def test_pinned_memory_is_read_as_late_as_the_copy_is(pinned: bool, read: int) -> None:
    here, there = torch.ones(3, pin_memory=pinned), torch.zeros(3, device="sim")
    simulated.set_delays(copy_ms=LATE_MS)
    there.copy_(here, non_blocking=True)
    here.fill_(2)
    assert there.tolist() == [read] * 3


def test_freed_memory_is_handed_out_while_work_that_uses_it_is_queued() -> None:
    """The next user on the same stream comes behind; one on another stream gets other memory."""
    first = torch.ones(3, device="sim")
    address = first.data_ptr()
    simulated.set_delays(kernel_ms=LATE_MS)
    first.fill_(2)
    del first
    with torch.Stream("sim"):
        assert torch.empty(3, device="sim").data_ptr() != address
    assert torch.empty(3, device="sim").data_ptr() == address


def test_memory_of_a_device_is_freed_once_recorded_streams_are_ready() -> None:
    first, stream = torch.ones(3, device="sim"), torch.Stream("sim")
    address = first.data_ptr()
    simulated.set_delays(copy_ms=LATE_MS)
    with stream:
        torch.empty_like(first).copy_(first)
    first.record_stream(stream)
    del first
    second = torch.empty(3, device="sim")
    assert second.data_ptr() != address
    stream.synchronize()
    assert torch.empty(3, device="sim").data_ptr() == address


def test_numbers_are_drawn_from_generators_of_the_devices() -> None:
    states = simulated.get_rng_state_all()
    wanted = [torch.randn(3, device=f"sim:{number}").tolist() for number in range(2)]
    before = torch.get_rng_state()
    simulated.set_rng_state_all(states)
    assert [torch.randn(3, device=f"sim:{number}").tolist() for number in range(2)] == wanted
    assert torch.equal(torch.get_rng_state(), before), "the CPU's generator is another one"
    own = torch.Generator("sim:1")
    assert torch.equal(
        torch.rand(3, device="sim:1", generator=own.manual_seed(3)).cpu(),
        torch.rand(3, device="sim:1", generator=own.manual_seed(3)).cpu(),
    )


def test_a_generator_is_a_seed_and_an_offset() -> None:
    """As CUDA's. DTensor moves the offset, so that ranks draw the numbers of their own shards."""
    generator = torch.Generator("sim").manual_seed(7)
    first, second = (torch.rand(3, device="sim", generator=generator).tolist() for _ in range(2))
    assert first != second
    assert generator.get_state().view(torch.int64).tolist() == [7, 8]
    generator.set_state(torch.tensor([7, 4]).view(torch.uint8))
    assert torch.rand(3, device="sim", generator=generator).tolist() == second


def test_a_device_refuses_what_it_is_told_to_refuse() -> None:
    simulated.limit_allocations(1000)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(1000, device="sim")
    assert torch.accelerator.memory_stats(0)["num_alloc_retries"] == 1
    simulated.refuse_pinning()
    with pytest.raises(RuntimeError, match="refuses to pin"):
        torch.zeros(3, pin_memory=True)
    here = torch.ones(3, device="sim")
    simulated.break_device(0)
    for call in (here.tolist, here.zero_, torch.accelerator.synchronize, simulated.Event().record):
        with pytest.raises(torch.AcceleratorError, match="the simulated device is broken"):
            call()
    assert torch.ones(3, device="sim:1").tolist() == [1, 1, 1]


def test_the_processor_cannot_read_a_device_s_memory() -> None:
    ended = run(
        "import ctypes\nwith simulated.plugged_in():\n    ctypes.string_at(torch.ones(3, device='sim').data_ptr(), 1)\n"
    )
    assert ended.returncode == -signal.SIGSEGV, ended.stderr


def test_a_fork_cannot_use_the_devices() -> None:
    ended = run(
        "simulated.register()\n"
        "simulated.plug_in()\n"
        "here = torch.ones(3, device='sim')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        here.add_(1)\n"
        "    except RuntimeError as error:\n"
        "        os._exit(3 if 'was forked' in str(error) and not simulated.is_initialized() else 4)\n"
        "    os._exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 3\n"
        "assert (here + 1).tolist() == [2, 2, 2]\n"
    )
    assert ended.returncode == 0, ended.stderr


def test_a_process_that_ends_may_go_to_a_device_that_is_unplugged() -> None:
    """Torch's objects do so as they are dropped, and an error there would end the process by SIGABRT."""
    torch.ones(1, device="sim:1")
    simulated.unplug()
    simulated.set_device(1)
    assert not simulated.has_context(1)
    with pytest.raises(RuntimeError, match="it is not plugged in"):
        torch.ones(1, device="sim:1")
    simulated.set_device(0)


@pytest.mark.slow
def test_gradients_are_computed_as_on_the_processor() -> None:
    """In a process of its own: see simulated.py."""
    ended = run(
        "simulated.register()\n"
        "simulated.plug_in()\n"
        "def train(device):\n"
        "    torch.manual_seed(1)\n"
        "    net = torch.nn.Sequential(\n"
        "        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(72, 4)\n"
        "    ).to(device)\n"
        "    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)\n"
        "    for _ in range(3):\n"
        "        net(torch.linspace(0, 1, 256, device=device).view(4, 1, 8, 8)).square().mean().backward()\n"
        "        optimizer.step()\n"
        "    return [value.detach().cpu() for value in net.state_dict().values()]\n"
        "torch.testing.assert_close(train('sim'), train('cpu'))\n"
    )
    assert ended.returncode == 0, ended.stderr
