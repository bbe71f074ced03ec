"""A stand-in for torch in jobs whose fork server is made to fail: torch's import takes longer than the whole job.

Modules of the hooks that the fork server imports need the real torch, so that they are marked as imported here.
"""

import sys
import types

for _name in ("ftlaunch_hooks.job.attaching", "ftlaunch_hooks.observe.forward_passes"):
    sys.modules[_name] = types.ModuleType(_name)


class default_generator:
    """The default generator, from which nothing here draws."""

    @staticmethod
    def seed() -> None:
        """Do nothing."""


def set_num_threads(count: int) -> None:
    """Do nothing: no rank computes with torch."""


def manual_seed(seed: int) -> None:
    """Do nothing: no rank draws from torch."""


class cuda:
    """torch.cuda on a machine without a GPU."""

    @staticmethod
    def is_initialized() -> bool:
        return False
