"""On which device the tests of this folder run, and that they are skipped where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if HERE in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.gpu)
    if not own or os.environ.get("FT_DEVICE") == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        for item in own:
            item.add_marker(
                pytest.mark.skip(
                    reason="there is no GPU here: run on a machine with CUDA; FT_DEVICE=cpu runs this on the processor"
                )
            )


@pytest.fixture
def device() -> str:
    """cuda, or cpu where FT_DEVICE says so."""
    return os.environ.get("FT_DEVICE", "cuda")
