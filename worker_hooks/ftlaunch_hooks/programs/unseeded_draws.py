"""Seeds what a script draws without a seed of its own, so that every attempt of a job draws the same.

The seed is one of the job (FTLAUNCH_SEED), and each rank draws something else. Without the variable nothing is seeded,
and the generators begin with numbers of the operating system's, as in a plain Python. What asks the operating system
each time (`random.Random()`, `random.SystemRandom()`, `numpy.random.default_rng()`, `torch.seed()`) still does.

Standard library only; loaded as a file, in a Python that may lack the hooks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import ModuleType

_SEED, _RANK = "FTLAUNCH_SEED", "RANK"


def calls(environ: Mapping[str, str], *, with_torch: bool) -> dict[str, Callable[[ModuleType], None]]:
    """Return what is to be called with a module once the module is imported, by the module's name."""
    seed, rank = environ.get(_SEED, ""), environ.get(_RANK, "")
    if not seed or not rank:
        return {}

    def seed_python(random: ModuleType) -> None:
        random.seed(_derived(seed, rank, "random", 8))

    def seed_numpy(random: ModuleType) -> None:
        random.seed(_derived(seed, rank, "numpy", 4))

    def seed_torch(torch: ModuleType) -> None:
        torch.manual_seed(_derived(seed, rank, "torch", 8) >> 1)  # of devices, once they are used

    found: dict[str, Callable[[ModuleType], None]] = {"random": seed_python, "numpy.random": seed_numpy}
    return {**found, "torch": seed_torch} if with_torch else found


def _derived(seed: str, rank: str, what: str, size: int) -> int:
    """A number of `size` bytes that follows from the job's seed, and tells nothing of any other such number."""
    digest = hashlib.sha256(f"ftlaunch {seed} {rank} {what}".encode()).digest()
    return int.from_bytes(digest[:size], "little")
