"""Gives random, NumPy and torch seeds for their global generators, so that every attempt draws the same numbers.

This concerns scripts that draw without a seed of their own. The seed belongs to the job (FTLAUNCH_SEED), and each rank
derives another one from it. Without the variable nothing is seeded, and the generators begin with entropy of the
operating system, as in a plain Python. Calls that ask the operating system each time (`random.Random()`,
`random.SystemRandom()`, `numpy.random.default_rng()`, `torch.seed()`) still do.

Standard library only; loaded as a file, in a Python that may lack the hooks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import ModuleType

_SEED = "FTLAUNCH_SEED"
_RANK = "RANK"


def calls(environ: Mapping[str, str], *, with_torch: bool) -> dict[str, Callable[[ModuleType], None]]:
    """Return the functions that seed modules, by module name.

    Each function is to be called with its module once the module is imported. Empty if the environment names no seed.

    Args:
        environ: the rank's environment.
        with_torch: whether torch is to be seeded, too.
    """
    seed = environ.get(_SEED, "")
    rank = environ.get(_RANK, "")
    if not seed or not rank:
        return {}

    def seed_python(random: ModuleType) -> None:
        random.seed(_derived(seed, rank, purpose="random", size=8))

    def seed_numpy(random: ModuleType) -> None:
        random.seed(_derived(seed, rank, purpose="numpy", size=4))

    def seed_torch(torch: ModuleType) -> None:
        # torch seeds devices by the same number once they are used.
        torch.manual_seed(_derived(seed, rank, purpose="torch", size=8) >> 1)

    found: dict[str, Callable[[ModuleType], None]] = {"random": seed_python, "numpy.random": seed_numpy}
    return {**found, "torch": seed_torch} if with_torch else found


def _derived(seed: str, rank: str, purpose: str, size: int) -> int:
    """Derive a number of `size` bytes from the job's seed. It reveals nothing about numbers for other purposes."""
    digest = hashlib.sha256(f"ftlaunch {seed} {rank} {purpose}".encode()).digest()
    return int.from_bytes(digest[:size], "little")
