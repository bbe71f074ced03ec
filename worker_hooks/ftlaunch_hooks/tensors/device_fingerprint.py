"""Fingerprints of what lies on a device, computed there: eight bytes come to the host in place of all.

A fingerprint is a multilinear hash: the sum, modulo 2^64, of words of 32 bits, each times a number of 64 bits that
belongs to its place. If these numbers are random, two different pieces have the same fingerprint with a probability of
at most 2^-33 (Carter and Wegman 1979; Lemire and Kaser, "Strongly universal string hashing is fast", 2014). Values that
only change places, and signs that are flipped in an even number of places, are noticed as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd number of 64 bits, of no pattern


def place_factors(count: int, device: torch.device) -> Tensor:
    """Return a number of no pattern for each of so many places, int64 on a device. They are the same each time."""
    factors = torch.arange(1, count + 1, dtype=torch.int64, device=device).mul_(_ODD)
    return factors.bitwise_xor_(factors >> 31).mul_(_ODD).bitwise_or_(1)


def fingerprint(words: Tensor, factors: Tensor, products: Tensor | None = None) -> Tensor:
    """Return the fingerprint of words as one int64 on their device.

    Args:
        words: integers of at most 32 bits, one-dimensional, on a device.
        factors: what `place_factors` has returned, for at least as many places.
        products: memory for the products, int64; None: it is allocated.
    """
    if products is None:
        return (factors[: words.numel()] * words).sum()
    into = products[: words.numel()]
    torch.mul(words, factors[: words.numel()], out=into)
    return into.sum()


def digest_of(words: Tensor, most_words: int) -> int:
    """Return a digest of words of any number, of which so many are looked at a time, and wait for it.

    Args:
        words: as `fingerprint` takes them.
        most_words: how many at a time; for a while this takes 24 times as many bytes of the device's memory.
    """
    factors = place_factors(min(most_words, words.numel()), words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in torch.split(words, most_words):
        total = total * _ODD + fingerprint(part, factors)
    return int(total)
