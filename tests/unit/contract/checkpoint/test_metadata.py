"""Whatever stands in metadata.json, common.json or a tensor file's header: it is taken, or refused with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.checkpoint import health_mark, tensor_file
from ftlaunch_contract.checkpoint.metadata import check_common, check_metadata
from ftlaunch_contract.checkpoint.tensor_file import Damaged, whole_chunk

BLOCK = 64 << 20
TEXT = st.text(st.sampled_from('wa0/.\0"\u00e9\u2028\U0001f600\ud800'), max_size=8)  # few characters, all that matter
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)

METADATA = {
    "version": 2,
    "step": 7,
    "world_size": 1,
    "files": {
        "common.json": {"bytes": 10, "xxh3_128": ["0" * 32]},
        "a.safetensors": {"bytes": 64, "xxh3_128": ["1" * 32]},
    },
    "tensors": {
        "w": {
            "dtype": "F32",
            "shape": [4, 4],
            "chunks": [{"offset": [0, 0], "shape": [4, 4], "file": "a.safetensors", "name": "w"}],
        }
    },
    "health": {"status": "normal", "why": ""},
}  # fmt: skip
STATUSES = (health_mark.NORMAL, health_mark.ABNORMAL, health_mark.UNKNOWN)
COMMON = {"step": 7, "world_size": 1, "consumed_samples": 3, "state": {}, "ranks": {"0": {}}}


@st.composite
def spoiled(draw: st.DrawFn, whole: Any) -> Any:
    """`whole` with one value in it, wherever that is, replaced by any other or taken out."""
    copy = json.loads(json.dumps(whole))
    inner, key = draw(st.sampled_from(list(_places(copy))))
    if draw(st.booleans()):
        inner[key] = draw(VALUES)
    else:
        del inner[key]
    return copy


def _places(value: Any) -> Any:
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


def refusal(check: Callable[[], object]) -> str | None:
    """Return the reason for which `check` refuses; None where it takes all. Raises whatever is no ValueError."""
    try:
        check()
    except ValueError as refused:
        return str(refused)
    return None


def test_what_is_spoiled_here_is_whole_before() -> None:
    check_metadata(METADATA, tensor_file.DTYPE_BYTES, BLOCK)
    check_common(COMMON, 7)
    assert health_mark.is_normal(METADATA)


@given(spoiled(METADATA))
def test_a_spoiled_metadata_raises_nothing_but_value_errors(metadata: dict[str, Any]) -> None:
    assert refusal(lambda: check_metadata(metadata, tensor_file.DTYPE_BYTES, BLOCK)) != ""
    assert health_mark.of(metadata)["status"] in STATUSES


@given(st.dictionaries(st.sampled_from(sorted(METADATA)), VALUES))
def test_any_mapping_for_metadata_raises_nothing_but_value_errors(metadata: dict[str, Any]) -> None:
    assert refusal(lambda: check_metadata(metadata, tensor_file.DTYPE_BYTES, BLOCK)) != ""
    assert health_mark.of(metadata)["status"] in STATUSES


@given(spoiled(COMMON) | VALUES)
def test_a_spoiled_common_raises_nothing_but_value_errors(common: Any) -> None:
    assert refusal(lambda: check_common(common, 7)) != ""


# --- headers of tensor files ------------------------------------------------------------------------------

PART = tensor_file.Chunk("part", "F32", (2, 4), "w", (2, 0), (4, 4))
HEADER = json.loads(tensor_file.build_header([whole_chunk("m", "F64", (2,)), PART])[0][8:])
PARTS = json.loads(HEADER["__metadata__"]["ftlaunch.chunks"])


def read(header: bytes) -> tuple[list[tensor_file.Chunk], list[int], int]:
    fd = os.memfd_create("header", os.MFD_CLOEXEC)
    try:
        os.write(fd, len(header).to_bytes(8, "little") + header)
        return tensor_file.read_header(fd)
    finally:
        os.close(fd)


def assert_damaged_or_consistent(header: bytes) -> list[tensor_file.Chunk]:
    """The chunks, or none where the header is refused; nothing but Damaged may be raised."""
    try:
        chunks, offsets, size = read(header)
    except Damaged as damage:
        assert str(damage).isprintable()
        return []
    ends = [begin + chunk.nbytes for chunk, begin in zip(chunks, offsets, strict=True)]
    assert max(ends, default=8 + len(header)) == size, "chunks lie side by side, up to the end of the file"
    return chunks


def test_a_whole_header_is_read() -> None:
    assert {chunk.name for chunk in assert_damaged_or_consistent(json.dumps(HEADER).encode())} == {"m", "part"}


@given(spoiled(HEADER))
def test_a_spoiled_header_is_damaged_or_consistent(header: Any) -> None:
    assert_damaged_or_consistent(json.dumps(header).encode())


@given(spoiled(PARTS))
def test_spoiled_places_of_parts_are_damaged_or_consistent(parts: Any) -> None:
    about = {**HEADER["__metadata__"], "ftlaunch.chunks": json.dumps(parts)}
    for chunk in assert_damaged_or_consistent(json.dumps({**HEADER, "__metadata__": about}).encode()):
        assert all(at + n <= w for at, n, w in zip(chunk.offset, chunk.shape, chunk.whole, strict=True))


@given(st.binary(max_size=200))
def test_any_bytes_for_a_header_are_damaged_or_consistent(header: bytes) -> None:
    assert_damaged_or_consistent(header)
