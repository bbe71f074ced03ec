"""Random numbers of an accelerator that is not CUDA's are saved and put back, or it is said that they are not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftlaunch_hooks.state.random_numbers import rng
from ftlaunch_hooks.state.random_numbers.generators import OwnGenerators


class Device:
    """The module of an accelerator with several devices."""

    def __init__(self, count: int) -> None:
        self.states = [torch.full((16,), number, dtype=torch.uint8) for number in range(count)]

    def is_initialized(self) -> bool:
        return True

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [state.clone() for state in self.states]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        self.states = [state.clone() for state in states]


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Put an accelerator in: its type, and its module."""

    def put(kind: str, module: object) -> None:
        accelerator = SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: SimpleNamespace(type=kind))
        monkeypatch.setattr(torch, "accelerator", accelerator)
        monkeypatch.setattr(torch, "get_device_module", lambda _: module)

    return put


def test_the_generators_of_all_devices_go_on(put_in: Any, capfd: pytest.CaptureFixture[str]) -> None:
    device = Device(2)
    put_in("xpu", device)
    generators = rng.Generators(OwnGenerators({}, {}))
    saved, mark = generators.state(), generators.mark()
    device.states[1] += 7
    assert generators.mark() != mark
    generators.put_back(saved)
    assert [int(state[0]) for state in device.states] == [0, 1]
    assert capfd.readouterr() == ("", "")


def test_a_module_with_one_generator_is_enough(put_in: Any) -> None:
    states = [torch.ones(4, dtype=torch.uint8)]
    module = SimpleNamespace(
        get_rng_state=lambda: states[0] + 0, set_rng_state=lambda state: states.__setitem__(0, state)
    )
    put_in("mps", module)
    generators = rng.Generators(OwnGenerators({}, {}))
    saved = generators.state()
    states[0] = states[0] + 1
    generators.put_back(saved)
    assert int(states[0][0]) == 1


@pytest.mark.parametrize("module", [Device(3), SimpleNamespace()])
def test_what_cannot_be_put_back_is_told(put_in: Any, module: object, capfd: pytest.CaptureFixture[str]) -> None:
    put_in("xpu", Device(2))
    generators = rng.Generators(OwnGenerators({}, {}))
    saved = generators.state()
    put_in("xpu", module)
    generators.put_back(saved)
    assert "random numbers of accelerators are not put back (saved: xpu with 2" in "".join(capfd.readouterr())
