"""Names of GPUs as the driver lists them, and as CUDA_VISIBLE_DEVICES picks them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ftlaunch.system.device_names import DeviceNames, gather_names, read_names

UUIDS = ("GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-bbbb2222-0000-0000-0000-000000000000")
MIG = "MIG-12345678-0000-0000-0000-000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place, uuid in zip(("0000:3b:00.0", "0000:af:00.0"), UUIDS, strict=True):
        folder = tmp_path / "proc/driver/nvidia/gpus" / place
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 17\nGPU UUID: \t {uuid}\nDevice Minor: 0\n"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, UUIDS),
        ("1,0", UUIDS[::-1]),
        ("1", UUIDS[1:]),
        ("GPU-bbbb", UUIDS[1:]),
        (f"{MIG},0", (MIG, UUIDS[0])),
        ("0,7,1", UUIDS[:1]),
        ("0,x,1", UUIDS[:1]),
        ("", ()),
    ],
)
def test_gpus_are_those_that_cuda_would_take(root: Path, visible: str | None, found: tuple[str, ...]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    names = gather_names(environ, root)
    assert names.gpus == found
    assert [names.gpu(number) for number in range(3)] == [*found, "", "", ""][:3]


def test_names_of_a_pod_are_those_of_its_environment(tmp_path: Path) -> None:
    environ = {"NODE_NAME": "n", "POD_NAME": "p", "POD_NAMESPACE": "s"}
    assert gather_names(environ, tmp_path) == DeviceNames(socket.gethostname(), "n", "p", "s", ())


def test_what_a_node_has_sent_is_checked(root: Path) -> None:
    names = gather_names({"POD_NAME": "p"}, root)
    assert read_names(names.as_dict()) == names
    nothing = DeviceNames("", "", "", "", ())
    for told in (None, [], {"gpus": 5, "host": 7, "pod": "x" * 1000}):
        assert read_names(told) == nothing
    assert read_names({"gpus": ["a", 5]}).gpus == ("a", "")
