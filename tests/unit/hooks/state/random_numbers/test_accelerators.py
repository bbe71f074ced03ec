"""Random numbers of an accelerator are saved and put back, or it is said that they are not."""

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

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.states[1] = state.clone()  # the current device is the second


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Put an accelerator in: its type, and its module."""

    def put(kind: str, module: object) -> None:
        accelerator = SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda: torch.device(kind),
            current_device_index=lambda: 1,
        )
        monkeypatch.setattr(torch, "accelerator", accelerator)
        monkeypatch.setattr(torch, kind, module)

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


@pytest.mark.parametrize(("kind", "module"), [("xpu", SimpleNamespace()), ("mps", Device(2))])
def test_what_cannot_be_put_back_is_told(
    put_in: Any, kind: str, module: object, capfd: pytest.CaptureFixture[str]
) -> None:
    put_in("xpu", Device(2))
    generators = rng.Generators(OwnGenerators({}, {}))
    saved = generators.state()
    put_in(kind, module)
    generators.put_back(saved)
    assert "random numbers of accelerators are not put back (saved: xpu with 2" in "".join(capfd.readouterr())


def test_where_no_accelerator_is_left_it_is_told(
    put_in: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Taken out (what is said where there is none now): the run goes on with other random numbers, and nobody knows."""
    with monkeypatch.context() as patch:
        put_in("xpu", Device(2))
        generators = rng.Generators(OwnGenerators({}, {}))
        saved = generators.state()
        patch.setattr(torch, "accelerator", SimpleNamespace(current_accelerator=lambda: None))
        generators.put_back(saved)
    said = "".join(capfd.readouterr())
    assert "(saved: xpu with 2 generators, in this process: no accelerator with 0 generators)" in said


def test_where_there_are_more_devices_the_current_one_goes_on(put_in: Any, capfd: pytest.CaptureFixture[str]) -> None:
    put_in("xpu", Device(2))
    generators = rng.Generators(OwnGenerators({}, {}))
    saved = generators.state()
    saved["accelerator"]["states"][1] += 7
    device = Device(3)
    put_in("xpu", device)
    generators.put_back(saved)
    assert [int(state[0]) for state in device.states] == [0, 8, 2]
    said = "".join(capfd.readouterr())
    assert "this process has xpu with 3 generators, and the saved state xpu with 2 generators" in said


@pytest.mark.parametrize("form", ["gpus", "cuda"])
def test_what_earlier_versions_have_saved_is_put_back(put_in: Any, form: str) -> None:
    device = Device(1)
    put_in("cuda", device)
    generators = rng.Generators(OwnGenerators({}, {}))
    saved = generators.state()
    states = [state + 9 for state in saved.pop("accelerator")["states"]]
    saved[form] = {"current": 0, "states": states} if form == "gpus" else states[0]
    device.set_rng_state = lambda state: device.states.__setitem__(0, state)  # type: ignore[method-assign]
    generators.put_back(saved)
    assert int(device.states[0][0]) == 9
