"""What a loader of data draws its random numbers from."""

from __future__ import annotations

from typing import Any

import torch

from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

PERSISTENT = (
    "workers of a DataLoader with persistent_workers=True keep random numbers from epoch to epoch, which are not saved:"
    " where they draw any, a run that has resumed after its first epoch is not exact"
)


class Draws:
    """What one loader draws from, besides the global generators: generators of its own, seeds of its samplers, and
    generators that its data set or its collator holds.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._held = loader, HeldGenerators(loader)

    def read(self) -> random_numbers.State:
        """The global generators, the loader's own, and those that are held."""
        return {**random_numbers.read(self.generators()), "held": self._held.states()}

    def put_back(self, state: random_numbers.State) -> None:
        """The reverse of `read`."""
        random_numbers.put_back(state, self.generators())
        self._held.put_back(state["held"])

    def own(self) -> dict[str, Any]:
        """Without the global ones."""
        seeds = [one.initial_seed for one in self._samplers() if hasattr(one, "initial_seed")]
        own = [generator.get_state() for generator in self.generators()]
        return {"own": own, "seeds": seeds, "held": self._held.states()}

    def put_back_seeds(self, saved: dict[str, Any]) -> None:
        """Before the pass begins, of what `own` has given."""
        seeded = [one for one in self._samplers() if hasattr(one, "initial_seed")]
        for sampler, seed in zip(seeded, saved["seeds"], strict=False):
            sampler.initial_seed = seed

    def put_back_own(self, saved: dict[str, Any]) -> None:
        """The generators of what `own` has given."""
        for generator, state in zip(self.generators(), saved["own"], strict=False):
            generator.set_state(state)
        self._held.put_back(saved["held"])

    def generators(self) -> list[torch.Generator]:
        """Generators that were given to the loader and its samplers, each once."""
        holders = [self._loader, *self._samplers()]
        held = [getattr(one, name, None) for one in holders for name in ("generator", "synchronized_generator")]
        return list({id(one): one for one in held if isinstance(one, torch.Generator)}.values())

    def _samplers(self) -> list[Any]:
        """The samplers within each other, as frameworks wrap them; Lightning hides one in a data set."""
        found, holder = [], self._loader
        for name in ("batch_sampler", "batch_sampler", "sampler", "sampler"):
            inner = getattr(holder, name, None)
            holder = holder if inner is None else inner
            found.append(holder)
        hidden = getattr(getattr(holder, "dataset", None), "_sampler", None)
        return found if hidden is None else [*found, hidden]
