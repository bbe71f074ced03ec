"""A file of tensors whose checksum is right and whose header lies is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.checkpoints import OPT, commit, put, refused


@pytest.fixture
def newest(memory: Path) -> Path:
    """The checkpoint of step 2, over one of step 1."""
    commit(memory, 1)
    return commit(memory, 2)


def tensor_file(header: object, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


GOOD = {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tensor_file({"opt0": GOOD}, length=1 << 40), "is cut short"),
        (tensor_file({"opt0": GOOD}, length=2**64 - 1), "is cut short"),
        (tensor_file({"opt0": {**GOOD, "shape": [1 << 40]}}), "contradicts itself about opt0"),
        (tensor_file({"opt0": {**GOOD, "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}), "does not hold what"),
        (tensor_file({"opt0": {**GOOD, "shape": [-1, -64]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "shape": [64.0]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "shape": "64"}}), "is not a list"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [-64, 0]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [0]}}), "are not two"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [64, 0]}}), "contradicts itself"),
        (tensor_file({"opt0": {**GOOD, "dtype": ["U8"]}}), "is not text"),
        (tensor_file({"opt0": GOOD, "more": GOOD}), "contradicts itself"),  # two in the same place
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": "[" * 100_000}}), "nested too deeply"),
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": 3}}), "cannot be read"),
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": '{"opt0": 1}'}}), "is not an object"),
        (tensor_file(b"[" * 100_000), "nested too deeply"),
        (tensor_file(b'{"opt0": 1, "opt0": 1}'), "a key stands twice"),
        (tensor_file({"other": GOOD}), "does not hold what metadata.json says"),
        (tensor_file({"opt0": GOOD}, bytes(65)), "does not hold what metadata.json says"),
        (tensor_file({}), "does not hold what metadata.json says"),
        (b"", "is cut short"),
        (b"\xff" * 8, "is cut short"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_tensor_file_that_lies(newest: Path, memory: Path, data: bytes, words: str) -> None:
    put(newest, OPT, data)
    assert words in refused(memory)
