"""Samples that no run of this job is to use again: `skipped.json` in the checkpoint directory. Standard library only.

The file is a list of spans [begin, end), in samples consumed over all ranks, as a sampler counts them. The supervisor
adds a span when it goes back because of a bad step; the samplers of every attempt read the list. All functions but
`read` and `add` are pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import atomic, untrusted_json
from ftlaunch_contract.files.regular_file import read_regular

NAME = layout.SKIPPED
_MAX_BYTES = 64 << 20  # room for more than a million spans

Spans = Sequence[tuple[int, int]]


def read(checkpoint_dir: Path) -> list[tuple[int, int]]:
    """Return all spans, in order; empty where there is no file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no list of spans.
    """
    try:
        data = read_regular(checkpoint_dir / NAME, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = untrusted_json.parse(data)
    if not isinstance(found, list):
        raise ValueError(f"{NAME} is not a list")
    spans = []
    for entry in found:
        span = untrusted_json.extents(entry, f"an entry of {NAME}")
        if len(span) != 2:
            raise ValueError(f"an entry of {NAME} is not a beginning and an end")
        spans.append((span[0], span[1]))
    return spans


def add(checkpoint_dir: Path, begin: int, end: int) -> tuple[int, int]:
    """Add a span to the file, and return the span as it was added. Raises OSError, ValueError.

    A bad step directly after a skipped span means that skipping the span has not helped. Then the samples before the
    span are skipped, too: their update may have ruined the state.
    """
    spans = read(checkpoint_dir)
    span = widened(spans, begin, end)
    atomic.replace_durable(checkpoint_dir / NAME, json.dumps(joined([*spans, span])).encode())
    return span


def widened(spans: Spans, begin: int, end: int) -> tuple[int, int]:
    """Return the span that `add` adds, which reaches further back where it follows a skipped span directly."""
    for first, last in spans:
        if first <= begin <= last <= end and first < last:
            return max(first - (end - last), 0), end
    return begin, end


def joined(spans: Spans) -> list[tuple[int, int]]:
    """Return the spans in order, with spans that touch or overlap joined."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], end)
        else:
            result.append((begin, end))
    return result


def after(spans: Spans, consumed: int) -> int:
    """Return where sampling goes on from a position: at the position itself, or at the end of the span it lies in."""
    for begin, end in spans:
        if begin <= consumed < end:
            return end
    return consumed
