"""A few values of a batch, by which it is known again."""

from __future__ import annotations

import pytest
import torch

from ftlaunch_hooks.passes.batch_sample import same, sample_of

ROWS = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.bool, torch.bfloat16, torch.complex64, torch.int64])
def test_a_batch_is_known_again(dtype: torch.dtype) -> None:
    batch = {"x": ROWS.to(dtype), "labels": [torch.tensor(3)]}
    assert same(sample_of([batch]), sample_of([{"labels": [torch.tensor(3)], "x": ROWS.to(dtype)}]))
    other = ROWS.clone()
    other[2, 3] = 0
    assert not same(sample_of([batch]), sample_of([{**batch, "x": other.to(dtype)}]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "csr", "nested", "jagged", "quantised"])
def test_what_has_no_rows_is_passed_over(kind: str) -> None:
    """Taken out: without the look at the layout a snapshot of a run with such batches fails."""
    two = [torch.ones(2), torch.ones(3)]
    made = {
        "sparse": ROWS.to_sparse,
        "csr": ROWS.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor(two),
        "jagged": lambda: torch.nested.nested_tensor(two, layout=torch.jagged),
        "quantised": lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.quint8),
    }
    assert same(sample_of([(made[kind](), ROWS)]), sample_of([[ROWS]]))


def test_no_batch_is_like_none() -> None:
    assert same(sample_of([]), sample_of([{"text": "no tensor"}]))
