"""Data that draws random numbers from generators of its own: a data set's, a collator's, and one that nobody finds."""

import numpy
import torch
from torch.utils.data import Dataset


class Hidden:
    """Holds a generator where nobody looks: it has no dict of attributes."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers = numpy.random.default_rng(6)

    def random(self) -> float:
        return self.numbers.random()


class Noisy(Dataset):
    """Rows of another data set, with noise from an attribute of this one; `hidden`: from where nobody looks, too."""

    def __init__(self, rows: Dataset, hidden: bool) -> None:
        self.rows, self.numbers = rows, numpy.random.default_rng(5)
        self.nested = [Hidden()] if hidden else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] + 0.1 * sum(one.random() for one in (self.numbers, *self.nested))


class Collator:
    """Makes its generator when it is first called."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = None

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        self.generator = self.generator or torch.Generator().manual_seed(8)
        batch = torch.stack(rows)
        return batch + 0.1 * torch.randn(batch.shape, generator=self.generator)


def own(rows: Dataset, style: set[str]) -> dict[str, object]:
    """What a DataLoader is given: the rows as they are, or with the style `own` or `hidden` noisy ones."""
    if style.isdisjoint({"own", "hidden"}):
        return {"dataset": rows}
    return {"dataset": Noisy(rows, "hidden" in style), "collate_fn": Collator()}
