"""Data sets and collators for hf.py, some of which draw random numbers.

`stream`: torch's IterableDataset; `draws`: from `own` generator, from Python's `random`, or from `torch`.
`streaming`: of the library datasets, of four shards and with a buffer that shuffles by `seed_of_data`.
`mlm`: DataCollatorForLanguageModeling; `noisy`: a collator that draws from three generators.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

Row = dict[str, torch.Tensor]


def rows_of(number: int, seed: int, uneven: bool = False) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(number):
        length = int(torch.randint(4, 12, (1,), generator=generator)) if uneven else 8
        ids = torch.randint(0, 64, (length,), generator=generator)
        found.append({"input_ids": ids, "labels": ids.clone()})
    return found


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(64)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"eos_token": "w1", "pad_token": "w2", "unk_token": "w0", "mask_token": "w3"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, **marks)


class Stream(IterableDataset):
    """Rows through a buffer that shuffles: each row drawn is replaced by the next one."""

    def __init__(self, rows: list[Row], draws: str) -> None:
        self.rows, self.draws, self.rng = rows, draws, random.Random(5)

    def _draw(self, below: int) -> int:
        if self.draws == "torch":
            return int(torch.randint(below, (1,)))
        return self.rng.randrange(below) if self.draws == "own" else random.randrange(below)

    def __iter__(self) -> Iterator[Row]:
        if not self.draws:
            yield from self.rows
            return
        buffer = self.rows[:5]
        for row in self.rows[5:]:
            place = self._draw(len(buffer))
            yield buffer[place]
            buffer[place] = row
        yield from buffer


class Noisy:
    """Draws from Python's generator, from torch's, and from one of its own that it makes when it is first called."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = None

    def __call__(self, batch: list[Row]) -> dict[str, torch.Tensor]:
        self.generator = self.generator or torch.Generator().manual_seed(8)
        ids = torch.stack([row["input_ids"] for row in batch])
        ids[:, random.randrange(8)] = torch.randint(64, (1,))
        ids[:, 0] = torch.randint(64, (len(batch),), generator=self.generator)
        return {"input_ids": ids, "labels": ids.clone()}


def data_of(kind: str, number: int, seed: int | None, draws: str) -> tuple[Any, Any]:
    """The data set, and a collator where it is not the one of all."""
    rows = rows_of(number, 1, kind == "grouped")
    if kind == "stream":
        return Stream(rows, draws), None
    if kind == "streaming":
        from datasets import Dataset

        lists = {name: [row[name].tolist() for row in rows] for name in ("input_ids", "labels")}
        stream = Dataset.from_dict(lists).to_iterable_dataset(num_shards=4).shuffle(seed=seed, buffer_size=5)
        return stream.with_format("torch"), None
    if kind == "mlm":
        return [{"input_ids": row["input_ids"]} for row in rows], DataCollatorForLanguageModeling(
            tokenizer(), mlm_probability=0.4, seed=seed
        )
    return rows, Noisy() if kind == "noisy" else None
