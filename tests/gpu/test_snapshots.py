"""Snapshots of tensors on a GPU: of the boundary, whatever stream or graph writes to them before and after it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import PinError
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.collector import TensorItem
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.file_reads import SHARE_BYTES
from ftlaunch_hooks.storage.parallel_read import Filling
from ftlaunch_hooks.tensors.value_samples import ValueSample

ON_GPU = os.environ.get("FT_DEVICE", "cuda") == "cuda"
only_gpu = pytest.mark.skipif(not ON_GPU, reason="there is no GPU here: run on a machine with CUDA")
LARGE = (64 if ON_GPU else 4) << 20  # parameters: 256 MiB on a GPU


class Large(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LARGE, device=device))
        self.register_buffer("mean", torch.zeros(3, device=device))


class Training:
    def __init__(self, memory: Path, device: str, *, has_page: bool = False) -> None:
        if not has_page:
            create_page(page_path(memory, 0))
        [self.page] = open_pages(memory, 1)
        self.page.begin(0, os.getpid(), 0)
        self.memory, self.model = memory, Large(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.model.weight.grad = torch.ones(LARGE, device=device)
        state = RankState({"model": self.model, "optimizer": self.optimizer}, (), 0, 1)
        self.snapshots = Snapshotter(state, self.page, [self.page], memory, 0, {})

    def content(self, step: int) -> list[float]:
        """All values that the weight has in the snapshot of a step."""
        self.snapshots.settle()
        slot = layout.slot_dir(self.memory, 0, self.page.slot_steps().index(step))
        found: list[float] = load_file(slot / "model.safetensors")["model.weight"].unique().tolist()
        return found


@pytest.fixture
def training(memory: Path, device: str) -> Iterator[Training]:
    training = Training(memory, device)
    yield training
    training.snapshots.close()
    training.page.close()


@pytest.fixture(params=["with room", "without room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the GPU has no room, the script waits until its bytes are in the slot."""
    monkeypatch.setattr(PrivateRoom, "has_room", lambda *_: request.param == "with room")


def occupy(milliseconds: int) -> None:
    """Keep the GPU's current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1e6))  # cycles, at about a GHz or two


@pytest.mark.usefixtures("room")
def test_a_snapshot_is_of_its_boundary(training: Training) -> None:
    for step in range(1, 8):
        training.snapshots.capture(step)
        training.optimizer.step()  # changes every weight
        assert training.content(step) == [1 - step]


@only_gpu
@pytest.mark.usefixtures("room")
def test_another_stream_writes_before_and_after_it(training: Training) -> None:
    """Without the wait for all streams the snapshot would have values of the step before."""
    stream = torch.cuda.Stream()
    for step in range(1, 6):
        with torch.cuda.stream(stream), torch.no_grad():
            occupy(50)
            training.model.weight.fill_(step)
        training.snapshots.capture(step)
        with torch.cuda.stream(stream), torch.no_grad():
            training.model.weight.fill_(-step)
        torch.cuda.synchronize()
        assert training.content(step) == [step]


@only_gpu
@pytest.mark.usefixtures("room")
def test_a_graph_replays_the_step(training: Training) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        training.model.weight.add_(1)
    for step in range(1, 6):
        graph.replay()
        training.snapshots.capture(step)
        assert training.content(step) == [step]


class Mirror:
    """State in pinned memory that the GPU writes to by itself, as an optimizer has that offloads its state."""

    def __init__(self, on_gpu: torch.Tensor) -> None:
        self.on_gpu, self.held = on_gpu, torch.zeros(LARGE, pin_memory=True)

    def queue(self, value: int) -> None:
        """The copy is made at some time after this has returned."""
        occupy(50)
        self.on_gpu.fill_(value)
        self.held.copy_(self.on_gpu, non_blocking=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


class Held(Mirror):
    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}


class Cloned(Mirror):
    """What is read inside state_dict() must have been written before."""

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held.clone()}


class Fetched(Mirror):
    """state_dict() itself queues the copy that it returns."""

    def queue(self, value: int) -> None:
        self.on_gpu.fill_(value)

    def state_dict(self) -> dict[str, Any]:
        occupy(50)
        self.on_gpu.add_(0)
        return {"held": self.on_gpu.to("cpu", non_blocking=True)}


@only_gpu
@pytest.mark.parametrize("kind", [Held, Cloned, Fetched])
def test_the_host_s_tensors_are_copied_once_the_gpu_has_written_them(memory: Path, kind: type[Mirror]) -> None:
    """No attached tensor lies on the GPU."""
    create_page(page_path(memory, 0))
    [page] = open_pages(memory, 1)
    page.begin(0, os.getpid(), 0)
    mirror = kind(torch.zeros(LARGE, device="cuda"))
    snapshots = Snapshotter(RankState({"mirror": mirror}, (), 0, 1), page, [page], memory, 0, {})
    for step in range(1, 5):
        mirror.queue(step)
        snapshots.capture(step)
        snapshots.settle()
        slot = layout.slot_dir(memory, 0, page.slot_steps().index(step))
        assert load_file(slot / "opt.safetensors")["mirror.held"].unique().tolist() == [step]
        torch.cuda.synchronize()
    snapshots.close()
    page.close()


# --- pinned memory ----------------------------------------------------------------------------------------


@only_gpu
def test_slots_are_pinned(memory: Path) -> None:
    slot = Slot(memory, 0, 0)
    slot.lay_out([TensorItem("weight", torch.ones(LARGE, device="cuda"), (0,), (LARGE,), owned=True)])
    assert slot.device.targets
    assert all(target.is_pinned() for target in slot.device.targets)
    slot.close()


@only_gpu
def test_pinned_slots_are_given_back(training: Training) -> None:
    training.snapshots.capture(1)
    training.snapshots.settle()
    training.model.weight = nn.Parameter(torch.ones(3, device="cuda"))  # laid out anew
    for step in (2, 3, 4, 5):
        training.snapshots.capture(step)
    training.snapshots.settle()
    assert max(training.page.slot_steps()) == 5


@only_gpu
def test_memory_that_was_given_back_can_be_pinned_again(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A map that is gone and was not given back counts as pinned for what is mapped in its place."""
    for attempt in range(4):
        training = Training(memory, "cuda", has_page=attempt > 0)
        for step in range(10 * attempt, 10 * attempt + 5):
            training.snapshots.capture(step)
            training.optimizer.step()
        training.snapshots.close()
        training.page.close()
    assert "cannot pin" not in capsys.readouterr().err


@only_gpu
def test_a_refused_pin_leaves_no_error_behind() -> None:
    """The script's next kernel would be refused in its place."""
    mapped = mmap.mmap(-1, 1 << 20)
    pinned = device_port.pin(mapped, 1 << 20, torch.device("cuda", 0))
    with pytest.raises(PinError, match="already mapped"):
        device_port.pin(mapped, 1 << 20, torch.device("cuda", 0))
    assert (torch.ones(3, device="cuda") + 1).tolist() == [2, 2, 2]
    pinned.close()


@only_gpu
def test_what_cannot_be_pinned_is_copied_all_the_same(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda.cudart(), "cudaHostRegister", lambda *_: 2)  # the driver's word for "no memory"
    for step in (1, 2, 3):
        training.snapshots.capture(step)
        training.optimizer.step()
    assert training.content(3) == [-2.0]
    assert capsys.readouterr().err.count("cannot pin the memory of snapshots") == 1


_UNDER_A_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
from pathlib import Path
import torch
from tests.gpu.test_snapshots import Training
training = Training(Path(sys.argv[1]), "cuda")
for step in (1, 2, 3):
    training.snapshots.capture(step)
    training.optimizer.step()
print(training.content(3), (torch.ones(3, device="cuda") + 1).tolist())
training.snapshots.close()
"""


@only_gpu
def test_a_limit_on_locked_memory_costs_nothing_but_time(memory: Path) -> None:
    """`ulimit -l 64`. Some drivers heed it, and some do not: where they do, a line says that nothing is pinned."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (root, root / "worker_hooks", root / "supervisor")))
    ended = subprocess.run(
        [sys.executable, "-c", _UNDER_A_LIMIT, str(memory)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "[-2.0] [2.0, 2.0, 2.0]\n"
    assert ended.stderr.count("cannot pin the memory of snapshots") <= 1


@only_gpu
def test_files_come_through_pinned_memory(memory: Path) -> None:
    """More of them than there are buffers, into memory that the script still writes to."""
    contents = [torch.randint(0, 256, (5 * SHARE_BYTES // 2,), dtype=torch.uint8) for _ in range(8)]
    targets = [torch.ones_like(content, device="cuda") for content in contents]
    filling = Filling()
    occupy(200)
    for number, (content, target) in enumerate(zip(contents, targets, strict=True)):
        (memory / f"file{number}").write_bytes(content.numpy().tobytes())
        target.zero_()
        filling.add(memory / f"file{number}", 0, target)
    filling.run()
    for content, target in zip(contents, targets, strict=True):
        assert torch.equal(target.cpu(), content)


# --- copies until the next step of an optimizer -----------------------------------------------------------


@pytest.fixture
def only_buffers_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateRoom, "has_room", lambda *_: False)
    monkeypatch.setattr(PrivateRoom, "has_room_for_buffers", lambda *_: True)


@only_gpu
@pytest.mark.usefixtures("only_buffers_fit")
def test_the_next_step_waits_for_an_overlapped_copy(training: Training) -> None:
    for step in range(1, 8):
        training.snapshots.capture(step)
        assert training.snapshots.is_copying
        training.optimizer.step()
        assert training.content(step) == [1 - step]


@only_gpu
@pytest.mark.usefixtures("only_buffers_fit")
def test_an_overlapped_copy_of_what_has_changed_is_dropped(training: Training) -> None:
    """The parameter is copied while the loop waits from then on, so that the same change does no harm."""
    for step in (1, 2):
        training.snapshots.fit(step)
        assert training.snapshots.capture(step)
        with torch.no_grad():
            training.model.weight.neg_()
            training.model.weight[-1] += 1
        training.snapshots.settle()
        torch.cuda.synchronize()
        kept = training.page.slot_steps()
        assert (step in kept) == (step == 2)
        with torch.no_grad():
            training.model.weight.fill_(step)
    assert training.content(2) == [1]


# --- private copies ---------------------------------------------------------------------------------------


@only_gpu
def test_private_copies_are_given_back(training: Training) -> None:
    before = torch.cuda.memory_allocated()
    for step in range(1, 9):
        training.snapshots.capture(step)
        has_private_copy = training.snapshots.is_copying
        assert has_private_copy == (step > 1), "before a step has shown the script's peak there is none"
        training.snapshots.settle()
        assert torch.cuda.memory_allocated() == before


@only_gpu
def test_new_memory_that_is_filled_does_not_overwrite_a_private_copy(training: Training) -> None:
    """torch.use_deterministic_algorithms() fills the memory of a private copy, on the script's stream."""
    torch.use_deterministic_algorithms(True)
    try:
        for step in range(1, 8):
            training.snapshots.capture(step)
            assert training.snapshots.is_copying == (step > 1)
            training.optimizer.step()
            assert training.content(step) == [1 - step]
    finally:
        torch.use_deterministic_algorithms(False)


@only_gpu
def test_the_script_captures_a_graph_while_a_private_copy_is_under_way(training: Training) -> None:
    """A call of another thread makes a capture invalid, unless that thread has been told that it may."""
    training.snapshots.capture(1)
    for step in range(2, 6):
        training.snapshots.capture(step)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="global"):
            assert training.snapshots.is_copying
            training.model.weight.add_(1)
            training.snapshots.slot_files(step)  # waits: the copy ends inside the capture
        assert training.content(step) == [step - 2]
        graph.replay()


def _compiled(model: nn.Module) -> nn.Module:
    compiled: nn.Module = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    return compiled


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {"eager": lambda model: model, "compiled": _compiled}


@pytest.mark.parametrize("way", WAYS)
def test_random_numbers_and_the_scaler_go_on(memory: Path, device: str, way: str) -> None:
    """Dropout on the device, with a GradScaler: two steps, a snapshot, two steps; restored, the two steps are alike."""
    from tests.support.snapshots import equal, save

    def make() -> tuple[Any, ...]:
        torch.manual_seed(3)
        model = WAYS[way](nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to(device))
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler(device)
        state = RankState({"model": model, "optimizer": optimizer, "scaler": scaler}, (), 0, 1)
        return model, optimizer, scaler, state

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> list[torch.Tensor]:
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(torch.randn(8, 16, device=device)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return losses

    *trained, state = make()
    state.restore_rng()
    train(*trained)
    saved = save(state, memory)
    wanted = train(*trained)
    *resumed, again = make()
    torch.manual_seed(99)
    again.restore(saved)
    again.restore_rng()
    assert equal(train(*resumed), wanted)
    assert equal(resumed[0].state_dict(), trained[0].state_dict())


@only_gpu
def test_samples_are_the_same_on_whatever_devices_their_tensors_lie() -> None:
    tensors = [torch.arange(float(size)) for size in (3, 100, 1, 7)]
    digests = {
        ValueSample([tensor.to(device) for tensor, device in zip(tensors, devices, strict=True)]).digest()
        for devices in (["cpu"] * 4, ["cuda"] * 4, ["cuda", "cpu", "cpu", "cuda"], ["cpu", "cuda", "cpu", "cuda"])
    }
    assert len(digests) == 1


@only_gpu
@pytest.mark.parametrize("ways", [{"capturable": True}, {"fused": True}, {}])
def test_an_optimizer_s_tensors_come_back_to_their_devices(memory: Path, ways: dict[str, bool]) -> None:
    """With a default device, torch makes the count of steps there, and keeps it wherever it is restored to."""
    from tests.support.snapshots import equal, save

    def make() -> tuple[torch.optim.Optimizer, RankState]:
        model = nn.Linear(4, 4, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), **ways)
        with torch.device("cuda"):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        return optimizer, RankState({"model": model, "optimizer": optimizer}, (), 0, 1)

    optimizer, state = make()
    saved = save(state, memory)
    again, resumed = make()
    resumed.restore(saved)
    before, after = (next(iter(one.state.values())) for one in (optimizer, again))
    assert before["step"].device.type == "cuda"
    assert {slot: value.device for slot, value in after.items()} == {slot: one.device for slot, one in before.items()}
    assert equal(after, before)
